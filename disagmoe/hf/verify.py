"""Proof of the way in and out: tiny random models of Transformers, imported, compared, exported."""

import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from disagmoe.checkpoint.find import find
from disagmoe.checkpoint.whole import whole_store
from disagmoe.config.model import ModelConfig
from disagmoe.errors import ConfigError
from disagmoe.hf.exporting import export_model
from disagmoe.hf.importing import import_model
from disagmoe.hf.settings import to_hf
from disagmoe.model.transformer import hidden_states, logits

TOLERANCE = 1e-5
_POSITIONS = 64
_BASE: dict[str, Any] = {
    "vocab_size": 61,
    "hidden": 32,
    "layers": 3,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 8,
    "experts": 12,  # "10" sorts before "2": an order of text would show
    "top_k": 3,
    "expert_width": 20,
    "init_std": 0.15,
}
_LATENT: dict[str, Any] = {
    "kv_heads": 4,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "expert_groups": 3,
    "top_groups": 2,
    "dense_layers": 1,
    "dense_width": 24,
    "routed_scaling": 2.5,
}
_YARN = {"factor": 4.0, "original_length": 16}
FAMILIES: dict[str, dict[str, Any]] = {
    "mixtral": {},
    "qwen3_moe": {},
    "olmoe": {"norm_topk_prob": False},
    "deepseek_v2": _LATENT | {"norm_topk_prob": False, "yarn": _YARN},
    "deepseek_v3": _LATENT | {"q_lora_rank": 10},
    "gpt_oss": {"window": 4, "full_attention_every": 2, "yarn": _YARN | {"truncate": False}},
}


@dataclass(frozen=True, slots=True)
class Checked:
    """One model, there and back."""

    name: str
    logit_difference: float
    """Largest relative difference of ours, and of the exported model's, from the source's."""
    problem: str
    """What is wrong beside that; empty when nothing is."""

    @property
    def ok(self) -> bool:
        """Whether all is as it should be."""
        return not self.problem and self.logit_difference < TOLERANCE


def tiny_models() -> Iterator[tuple[str, ModelConfig]]:
    """Every family, with expert width different from hidden and equal to it: a square matrix hides
    that it is transposed."""
    for family, sets in FAMILIES.items():
        for width in (20, 32):
            shared = {"shared_width": 2 * width} if "dense_layers" in sets else {}
            values = _BASE | sets | shared | {"family": family, "expert_width": width}
            yield f"{family}/{width}", ModelConfig.model_validate(values)


def verify_tiny(report: Callable[[Checked], None]) -> list[Checked]:
    """Check all of `tiny_models`. Raises ConfigError where Transformers is not installed."""
    checked = []
    for name, model in tiny_models():
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "source"
            _save_random(model, source)
            checked.append(verify_model(name, source, Path(folder)))
        report(checked[-1])
    return checked


def verify_model(name: str, source: Path, work: Path) -> Checked:
    """Import the model in `source` to the empty folder `work`, export it again, and compare logits
    in fp32."""
    transformers = _transformers()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    vocabulary = theirs.config.vocab_size
    tokens = torch.randint(vocabulary, (2, 11), generator=torch.Generator().manual_seed(1))
    expected = _logits(theirs, tokens)
    del theirs
    checkpoint = str(work / "checkpoint")
    model = import_model(source, checkpoint).model
    store = whole_store(find(checkpoint), model, torch.float32)
    ours = logits(store, model, tokens)
    export_model(checkpoint, work / "exported", dtype="fp32")
    again, loading = transformers.AutoModelForCausalLM.from_pretrained(
        work / "exported", dtype=torch.float32, output_loading_info=True
    )
    wrong = [f"{what}: {sorted(keys)}" for what, keys in loading.items() if keys]
    if _difference(ours, expected) >= TOLERANCE:
        theirs = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
        wrong.append(first_difference(theirs, store, model, tokens))
    worst = max(_difference(ours, expected), _difference(_logits(again, tokens), expected))
    return Checked(name, worst, "; ".join(wrong))


def _difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@torch.no_grad()
def first_difference(
    theirs: Any, store: Mapping[str, torch.Tensor], model: ModelConfig, tokens_BS: torch.Tensor
) -> str:
    """Return where the residual stream in fp32 first leaves that of the Transformers model
    `theirs`."""
    output = theirs.eval()(input_ids=tokens_BS, use_cache=False, output_hidden_states=True)
    # before each layer; the last one is after the final norm, which ours has not
    for layers, expected in enumerate(output.hidden_states[:-1]):
        first = model.model_copy(update={"layers": layers})
        found, _ = hidden_states(store, first, tokens_BS)
        difference = _difference(found.view_as(expected), expected)
        if difference >= TOLERANCE:
            where = f"layer {layers - 1}" if layers else "the embedding"
            return f"first differs after {where}: {difference:.1e}"
    return f"differs only after layer {model.layers - 1}, the final norm or the LM head"


@torch.no_grad()
def _logits(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    values: torch.Tensor = model.eval()(input_ids=tokens, use_cache=False).logits
    return values


@torch.no_grad()
def _save_random(model: ModelConfig, folder: Path) -> None:
    transformers = _transformers()
    settings = transformers.AutoConfig.for_model(**to_hf(model, max_positions=_POSITIONS))
    torch.manual_seed(3)
    theirs = transformers.AutoModelForCausalLM.from_config(settings)
    for tensor in (*theirs.parameters(), *theirs.buffers()):
        if tensor.ndim == 1 and tensor.is_floating_point():  # no vector is 0 or 1, so that a
            tensor.add_(0.2 * torch.randn(tensor.shape))  # forgotten one shows
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs.save_pretrained(folder)


def _transformers() -> Any:
    try:
        transformers = import_module("transformers")  # not installed where types are checked
    except ImportError:
        raise ConfigError("the comparison needs Transformers; install disagmoe[hf]") from None
    transformers.utils.logging.disable_progress_bar()
    return transformers
