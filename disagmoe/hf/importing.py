"""A Transformers model as a checkpoint: weights alone, which a run begins with at step 0.

One tensor of theirs is in memory at a time, and the parameters of one file of ours.
"""

import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from disagmoe import __version__
from disagmoe.checkpoint.catalogue import check_unused, step_place
from disagmoe.checkpoint.commit import commit
from disagmoe.checkpoint.manifest import Done
from disagmoe.checkpoint.part import Part, Piece, write_part
from disagmoe.checkpoint.slices import Kind, Slice
from disagmoe.config.model import ModelConfig, ModelFile
from disagmoe.config.run import RunConfig
from disagmoe.config.tomlwrite import dump_toml
from disagmoe.data.position import DataPosition
from disagmoe.errors import ConfigError, DataError
from disagmoe.hf.quantised import Unpacked, packing_of
from disagmoe.hf.settings import from_hf
from disagmoe.hf.source import Weights, carry, read_settings
from disagmoe.hf.tensors import Fusion, HfTensor, hf_tensors
from disagmoe.model import names
from disagmoe.storage import Location
from disagmoe.units import GIB

FOLDER = "hf"
"""Folder in the checkpoint for what is carried along."""
MODEL_FILE = "model.toml"
PART_BYTES = 4 * GIB
_ROTARY = ".rotary_emb.inv_freq"
"""Ending of tensors that old files hold although they follow from the settings."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What was done."""

    place: str
    model: ModelConfig
    tensors: int
    """Tensors of theirs that were read."""
    parameters: int
    """Elements that were written."""
    fusion: Fusion
    notices: tuple[str, ...]
    """What the user should know."""


def import_model(
    source: Path,
    out: str,
    *,
    config: RunConfig | None = None,
    without_mtp: bool = False,
    part_bytes: int = PART_BYTES,
) -> Imported:
    """Write the model in `source` to the folder of checkpoints `out`, as step 0.

    The checkpoint holds `config`, whose model must be the one in `source`, but may have more rows
    of vocabulary, which start at 0; without it, settings that only the model's are meant in.
    `without_mtp` leaves layers of multi-token prediction out. Quantised weights are unpacked to
    bf16.

    Raises ConfigError for settings that are not supported, DataError for weights that are not
    exactly those of the model, CheckpointError where `out` holds checkpoints or cannot be written.
    """
    settings = read_settings(source)
    theirs = from_hf(settings)
    weights = Unpacked.of(Weights.open(source), packing_of(settings))
    run, notices = _run_config(theirs, settings, config)
    folder = Location.parse(out)
    check_unused(folder)
    plan = _Plan.of(theirs, weights, without_mtp=without_mtp)
    place = step_place(folder, 0)
    parts = list(_write(plan, weights, theirs, run.model, place, part_bytes))
    if place.is_local:
        carry(source, Path((place / FOLDER).path))
        text = dump_toml(ModelFile(model=run.model))
        Path((folder / MODEL_FILE).path).write_text(text, encoding="utf-8")
    manifest = commit(
        place,
        parts,
        shapes=names.saved_shapes(run.model),
        done=Done(step=0, updates=0, tokens=0, first_loss=None),
        data=DataPosition().model_dump(),
        config=run,
        programs_sha256="",
        versions={
            "disagmoe": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
    )
    return Imported(
        place=str(place),
        model=run.model,
        tensors=len(plan.wanted),
        parameters=manifest.parameter_count,
        fusion=plan.fusion,
        notices=(*notices, *plan.notices),
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    """Which tensors of theirs are read, all others being an error."""

    fusion: Fusion
    wanted: dict[str, HfTensor]
    notices: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, model: ModelConfig, weights: Unpacked, *, without_mtp: bool) -> "_Plan":
        fused = any(name.endswith(".experts.gate_up_proj") for name in weights.shape_of)
        fusion: Fusion = "fused" if fused else "per_expert"
        wanted = {tensor.name: tensor for tensor in hf_tensors(model, fusion)}
        missing = sorted(wanted.keys() - weights.shape_of.keys())
        extra = sorted(weights.shape_of.keys() - wanted.keys())
        plan = cls(fusion, wanted)
        if weights.packing is not None:
            plan.notices.append(
                f"{len(weights.scales_of)} tensors are unpacked to bf16 from {weights.packing}"
            )
        extra = [name for name in extra if not plan._explained(name, model, weights, without_mtp)]
        problems = [f"{name} is missing" for name in missing]
        problems += [f"{name} belongs to nothing in this model" for name in extra]
        for name, tensor in wanted.items():
            found = weights.shape_of.get(name)
            if found not in (None, tensor.shape):
                problems.append(f"{name} has shape {found}; expected {tensor.shape}")
        if problems:
            shown = "\n".join(f"  - {problem}" for problem in problems[:20])
            more = f"\n  and {len(problems) - 20} more" if len(problems) > 20 else ""
            raise DataError(f"these weights are not those of config.json:\n{shown}{more}")
        return plan

    def _explained(
        self, name: str, model: ModelConfig, weights: Unpacked, without_mtp: bool
    ) -> bool:
        """Whether a tensor that the model does not have may be there all the same."""
        if name.endswith(_ROTARY):
            return True
        if name == "lm_head.weight" and model.tied_embeddings:
            embedding = weights.tensor("model.embed_tokens.weight")
            if not torch.equal(weights.tensor(name), embedding):
                raise DataError(
                    f"{name} differs from model.embed_tokens.weight, but config.json says "
                    "tie_word_embeddings = true; set it to false"
                )
            return True
        prefix, _, rest = name.partition("model.layers.")
        layer = rest.partition(".")[0]
        if prefix or not layer.isdecimal() or int(layer) < model.layers:
            return False
        if not without_mtp:
            raise DataError(
                f"{name} is of a layer of multi-token prediction, which is not trained here; "
                "--without-mtp leaves such layers out"
            )
        self.notices.append(f"left out: {name}")
        return True


def _write(
    plan: _Plan,
    weights: Unpacked,
    theirs: ModelConfig,
    ours: ModelConfig,
    place: Location,
    part_bytes: int,
) -> Iterator[Part]:
    """Write files of about `part_bytes`, and yield each."""
    pieces: list[Piece] = []
    size, count = 0, 0
    for name, tensor in weights.tensors():
        if name not in plan.wanted:
            continue
        for piece in plan.wanted[name].pieces:
            value = _padded(piece.name, piece.view(tensor), theirs, ours).contiguous()
            pieces.append(_piece(piece.name, value))
            size += value.numel() * value.element_size()
        if size >= part_bytes:
            yield write_part(place, f"A0.{count}", pieces, {})
            pieces, size, count = [], 0, count + 1
    if pieces:
        yield write_part(place, f"A0.{count}", pieces, {})


def _piece(name: str, value: torch.Tensor) -> Piece:
    cut = Slice(name, tuple(value.shape), 0, value.numel())
    return Piece(cut, {Kind.MASTER: value.clone().flatten()})


def _padded(name: str, value: torch.Tensor, theirs: ModelConfig, ours: ModelConfig) -> torch.Tensor:
    """Add rows of 0 to embedding and LM head where our vocabulary has more."""
    if name not in (names.EMBED, names.HEAD) or ours.vocab_size == theirs.vocab_size:
        return value
    more = value.new_zeros(ours.vocab_size - theirs.vocab_size, value.shape[1])
    return torch.cat((value, more))


def _run_config(
    model: ModelConfig, settings: dict[str, object], config: RunConfig | None
) -> tuple[RunConfig, list[str]]:
    coefficient = _aux_coef(model, settings)
    if config is None:
        return _model_alone(model, coefficient), []
    _check_model(model, config.model)
    notices = []
    if coefficient and config.train.loss.aux_coef != coefficient:
        notices.append(
            f"router_aux_loss_coef = {settings['router_aux_loss_coef']} of config.json is "
            f"train.loss.aux_coef = {coefficient:.6g} here, and the config has "
            f"{config.train.loss.aux_coef:g}"
        )
    return config, notices


def _aux_coef(model: ModelConfig, settings: dict[str, object]) -> float:
    """Return `train.loss.aux_coef` of the same pull as `router_aux_loss_coef`.

    At uniform routing theirs is K, over the tokens of all layers together, ours 1 for each layer.
    """
    theirs = settings.get("router_aux_loss_coef")
    given = float(theirs) if isinstance(theirs, int | float) else 0.0
    return given * model.top_k / model.moe_layers


def _model_alone(model: ModelConfig, aux_coef: float) -> RunConfig:
    """A run whose own settings are no one's wish; whoever trains gives a config."""
    return RunConfig.model_validate(
        {
            "name": "imported",
            "model": model.model_dump(),
            "train": {
                "steps": 1,
                "global_batch_size": 1,
                "sequence_length": 1,
                "loss": {"aux_coef": aux_coef},
            },
            "data": {"paths": ["data"]},
        }
    )


_OWN: Sequence[str] = ("vocab_size", "init_std", "forced_balance")
"""Settings that a run may have otherwise than the file."""


def _check_model(theirs: ModelConfig, ours: ModelConfig) -> None:
    problems = [
        f"model.{name} = {getattr(ours, name)}, but config.json says {getattr(theirs, name)}"
        for name in ModelConfig.model_fields
        if name not in _OWN and getattr(ours, name) != getattr(theirs, name)
    ]
    if ours.vocab_size < theirs.vocab_size:
        problems.append(
            f"model.vocab_size = {ours.vocab_size} is less than the {theirs.vocab_size} of "
            "config.json"
        )
    if problems:
        raise ConfigError(problems)
