"""Every tensor of a Transformers model, and which of our parameters lie where in it.

Two layouts of experts exist. On disk they are one matrix each (`per_expert`), but in GPT-OSS; in
the memory of Transformers 5, and in files that were saved with its names, the experts of a layer
are stacked (`fused`), gate before up. GPT-OSS always stacks, [in, out], gate and up alternating.

Letters: E experts, F expert width, D hidden.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from disagmoe.config.families import traits
from disagmoe.config.model import ModelConfig
from disagmoe.model import names

Fusion = Literal["per_expert", "fused"]
Index = tuple[int | slice, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """One of our parameters inside a tensor of theirs."""

    name: str
    """Our global name."""
    index: Index = ()
    transposed: bool = False

    def view(self, theirs: torch.Tensor) -> torch.Tensor:
        """Return the part of `theirs` that is this parameter, in our orientation."""
        part = theirs[self.index] if self.index else theirs
        return part.T if self.transposed else part


@dataclass(frozen=True, slots=True)
class HfTensor:
    """One tensor of theirs; its pieces cover it."""

    name: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


_MIXING = {
    "attn.q": "q_proj",
    "attn.k": "k_proj",
    "attn.v": "v_proj",
    "attn.o": "o_proj",
    "attn.q_norm": "q_norm",
    "attn.k_norm": "k_norm",
    "attn.q_down": "q_a_proj",
    "attn.q_down_norm": "q_a_layernorm",
    "attn.q_up": "q_b_proj",
    "attn.kv_down": "kv_a_proj_with_mqa",
    "attn.kv_down_norm": "kv_a_layernorm",
    "attn.kv_up": "kv_b_proj",
}
_PROJECTIONS = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
_MIXTRAL = {"gate": "w1", "up": "w3", "down": "w2"}


def hf_tensors(config: ModelConfig, fusion: Fusion) -> tuple[HfTensor, ...]:
    """Return all tensors of the model in file order; with tied embeddings there is no LM head.

    Together their pieces are `names.global_shapes` and the balance biases, each once.
    """
    return tuple(_hf_tensors(config, fusion))


def _hf_tensors(config: ModelConfig, fusion: Fusion) -> Iterator[HfTensor]:
    embedding = (config.vocab_size, config.hidden)
    yield _whole("model.embed_tokens.weight", names.EMBED, embedding)
    for layer in range(config.layers):
        shapes = names.attention_shapes(config, layer) | names.balance_shapes(config, layer)
        for ours, shape in shapes.items():
            yield _whole(_attention_side(config, layer, ours, fusion), ours, shape)
        if layer >= config.dense_layers:
            yield from _experts(config, layer, fusion)
    yield _whole("model.norm.weight", names.FINAL_NORM, (config.hidden,))
    if not config.tied_embeddings:
        yield _whole("lm_head.weight", names.HEAD, embedding)


def _whole(theirs: str, ours: str, shape: tuple[int, ...]) -> HfTensor:
    return HfTensor(theirs, shape, (Piece(ours),))


def _attention_side(config: ModelConfig, layer: int, ours: str, fusion: Fusion) -> str:
    """Their name of one of our tensors of `layer` that is no expert's."""
    leaf, _, kind = ours.removeprefix(f"layers.{layer}.").rpartition(".")
    theirs = f"model.layers.{layer}"
    if leaf in ("attn_norm", "moe_norm"):
        norm = "input_layernorm" if leaf == "attn_norm" else "post_attention_layernorm"
        return f"{theirs}.{norm}.weight"
    if leaf == "attn.sinks":
        return f"{theirs}.self_attn.sinks"
    if leaf.startswith("attn."):
        return f"{theirs}.self_attn.{_MIXING[leaf]}.{kind}"
    if leaf == "router":
        kind = "e_score_correction_bias" if kind == "balance_bias" else kind
        router = "router" if config.family == "gpt_oss" else "gate"
        return f"{theirs}.{_mlp(config, fusion)}.{router}.{kind}"
    part, _, projection = leaf.partition(".")
    if part == "dense":
        return f"{theirs}.mlp.{_PROJECTIONS[projection]}.{kind}"
    shared = "shared_expert" if config.family == "qwen2_moe" else "shared_experts"
    if projection == "switch":
        return f"{theirs}.mlp.{shared}_gate.{kind}"
    return f"{theirs}.mlp.{shared}.{_PROJECTIONS[projection]}.{kind}"


def _mlp(config: ModelConfig, fusion: Fusion) -> str:
    on_disk = config.family == "mixtral" and fusion == "per_expert"
    return "block_sparse_moe" if on_disk else "mlp"


def _experts(config: ModelConfig, layer: int, fusion: Fusion) -> Iterator[HfTensor]:
    theirs = f"model.layers.{layer}.{_mlp(config, fusion)}.experts"
    if config.family == "gpt_oss":
        yield from _alternating(config, layer, theirs)
    elif fusion == "fused":
        yield from _stacked(config, layer, theirs)
    else:
        leaves = _MIXTRAL if config.family == "mixtral" else _PROJECTIONS
        for expert in range(config.experts):
            shapes = names.expert_shapes(config, layer, expert)
            for ours, leaf in leaves.items():
                name = names.expert_name(layer, expert, ours)
                yield _whole(f"{theirs}.{expert}.{leaf}.weight", name, shapes[name])


def _stacked(config: ModelConfig, layer: int, theirs: str) -> Iterator[HfTensor]:
    experts, width, hidden = config.experts, config.expert_width, config.hidden
    rows = {"gate": slice(0, width), "up": slice(width, 2 * width)}
    gate_up = tuple(
        Piece(names.expert_name(layer, expert, leaf), (expert, part))
        for expert in range(experts)
        for leaf, part in rows.items()
    )
    down = tuple(
        Piece(names.expert_name(layer, expert, "down"), (expert,)) for expert in range(experts)
    )
    yield HfTensor(f"{theirs}.gate_up_proj", (experts, 2 * width, hidden), gate_up)
    yield HfTensor(f"{theirs}.down_proj", (experts, hidden, width), down)


def _alternating(config: ModelConfig, layer: int, theirs: str) -> Iterator[HfTensor]:
    assert traits(config).expert_bias, "GPT-OSS"
    experts, width, hidden = config.experts, config.expert_width, config.hidden
    every = slice(None)
    columns = {"gate": slice(0, None, 2), "up": slice(1, None, 2)}
    gate_up, gate_up_bias, down, down_bias = [], [], [], []
    for expert in range(experts):
        for leaf, part in columns.items():
            weight, bias = _pair(layer, expert, leaf)
            gate_up.append(Piece(weight, (expert, every, part), transposed=True))
            gate_up_bias.append(Piece(bias, (expert, part)))
        weight, bias = _pair(layer, expert, "down")
        down.append(Piece(weight, (expert,), transposed=True))
        down_bias.append(Piece(bias, (expert,)))
    yield HfTensor(f"{theirs}.gate_up_proj", (experts, hidden, 2 * width), tuple(gate_up))
    yield HfTensor(f"{theirs}.gate_up_proj_bias", (experts, 2 * width), tuple(gate_up_bias))
    yield HfTensor(f"{theirs}.down_proj", (experts, width, hidden), tuple(down))
    yield HfTensor(f"{theirs}.down_proj_bias", (experts, hidden), tuple(down_bias))


def _pair(layer: int, expert: int, leaf: str) -> tuple[str, str]:
    return names.expert_name(layer, expert, leaf), names.expert_bias_name(layer, expert, leaf)
