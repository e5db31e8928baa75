"""A config beside that of a checkpoint: what cannot change, what has changed, what stays frozen."""

from collections.abc import Iterator, Mapping
from typing import Any

from disagmoe.config.costs import USUAL
from disagmoe.config.run import RunConfig
from disagmoe.config.tomlwrite import format_value
from disagmoe.errors import ConfigError

CHANGEABLE = frozenset(
    {"top_k", "norm_topk_prob", "forced_balance", "rope_theta", "norm_eps", "init_std"}
)
"""Settings of the model that do not decide which parameters there are and what they are for."""

_OPEN: Mapping[str, Any] = {
    "in_flight": 0,
    "costs": USUAL,
    "attention_shares": [],
    "profile": "auto",
    "residual": "auto",
}
"""Settings of `parallel` that are found for what the others ask for, as yet to be found."""


def check_same_model(config: RunConfig, saved: RunConfig, place: object) -> None:
    """Raise ConfigError where the checkpoint in `place` is of another network than `config`'s."""
    different = [
        f"model.{key} = {format_value(getattr(saved.model, key))} there, "
        f"{format_value(getattr(config.model, key))} here"
        for key in type(saved.model).model_fields
        if key not in CHANGEABLE and getattr(saved.model, key) != getattr(config.model, key)
    ]
    if different:
        raise ConfigError(
            f"the checkpoint {place} is of another model: {'; '.join(different)}; leave --config "
            "out to go on with the checkpoint's own config, or name another checkpoint"
        )


def thawed(saved: RunConfig) -> RunConfig:
    """Return `saved` with what was found for it left open again, to change it; `frozen` is the
    inverse where nothing is changed."""
    machine = {"device": "auto", "transport": "auto"}
    return saved.model_copy(
        update={
            "parallel": saved.parallel.model_copy(update=_OPEN),
            "cluster": saved.cluster.model_copy(update=machine),
        }
    )


def frozen(config: RunConfig, saved: RunConfig) -> RunConfig:
    """Return `config` with what `saved` has found put where `config` leaves it open: the precision,
    and where both divide the same work alike, costs, depth and shares, so that the same programs
    run."""
    if config.train.precision == "auto":
        train = config.train.model_copy(update={"precision": saved.train.precision})
        config = config.model_copy(update={"train": train})
    if not _same_work(config, saved):
        return config
    mine, theirs = config.parallel, saved.parallel
    update: dict[str, Any] = {}
    if mine.costs == USUAL and mine.profile != "off":
        update |= {"costs": theirs.costs, "profile": theirs.profile}
    if mine.in_flight == 0:
        update["in_flight"] = theirs.in_flight
    if not mine.attention_shares:
        update["attention_shares"] = theirs.attention_shares
    if mine.residual == "auto":
        update["residual"] = theirs.residual
    return config.model_copy(update={"parallel": mine.model_copy(update=update)})


def _same_work(config: RunConfig, saved: RunConfig) -> bool:
    def work(one: RunConfig) -> tuple[object, ...]:
        train = one.train
        parallel = one.parallel.model_dump(exclude=set(_OPEN))
        sizes = (train.global_batch_size, train.sequence_length, train.precision)
        return (one.model.model_dump(), parallel, sizes, train.loss.model_dump())

    return work(config) == work(saved)


def changes(config: RunConfig, saved: RunConfig) -> list[str]:
    """Say of each setting that differs what it was and what it is, as `train.steps: 10 -> 20`; of
    the costs, which are many and mostly measured, that they differ."""
    return list(_changes("", saved.model_dump(), config.model_dump()))


def _changes(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for key in dict.fromkeys((*before, *after)):
        dotted, old, new = f"{name}{key}", before.get(key), after.get(key)
        if dotted == "parallel.costs":
            if old != new:
                yield "parallel.costs: others than before"
        elif isinstance(old, dict) and isinstance(new, dict):
            yield from _changes(f"{dotted}.", old, new)
        elif old != new:
            yield f"{dotted}: {_shown(old)} -> {_shown(new)}"


def _shown(value: object) -> str:
    return "none" if value is None else format_value(value)
