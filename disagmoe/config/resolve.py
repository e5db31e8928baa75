"""Automatic settings replaced by what they stand for on one machine."""

from typing import Any

from disagmoe.config.costs import USUAL, ring_depth
from disagmoe.config.parallel import COLOCATED, ParallelConfig
from disagmoe.config.rules import problems
from disagmoe.config.run import RunConfig
from disagmoe.errors import ConfigError

LEAST_PROFILED_RUN = 10
"""Steps of a run that `parallel.profile = "auto"` measures; a shorter one gains nothing."""


def resolve(config: RunConfig, *, cuda: bool, own_gpus: bool | None = None) -> RunConfig:
    """Return `config` with every `auto` filled in; `cuda` says whether a CUDA device is here, and
    `own_gpus` whether there is one for each worker, where that is known.

    Resolving twice changes nothing. `parallel.in_flight = 0` stays where a profile will fill it in.
    Settings that depend on the machine's cores
    (`cluster.threads_per_worker = 0`) stay, so that the result runs elsewhere too.

    Raises:
        ConfigError: CUDA is asked for where there is none, or `config` breaks a rule between
            settings (a config built in Python has not met them yet).
    """
    found = problems(config)
    if config.cluster.device == "cuda" and not cuda:
        found.append(
            'cluster.device = "cuda", but this machine has no CUDA device that torch can use; '
            'use "auto" or "cpu"'
        )
    device = _fill(config.cluster.device, "cuda" if cuda else "cpu")
    if config.cluster.transport == "nccl":
        found += _without_nccl(cuda=cuda, device=device, own_gpus=own_gpus)
    if found:
        raise ConfigError(found)
    return config.model_copy(
        update={
            "parallel": _resolve_parallel(config),
            "train": config.train.model_copy(
                update={
                    "precision": _fill(
                        config.train.precision, "bf16" if device == "cuda" else "fp32"
                    )
                }
            ),
            "cluster": config.cluster.model_copy(
                update={
                    "device": device,
                    "transport": _fill(
                        config.cluster.transport,
                        "nccl" if device == "cuda" and own_gpus else "gloo",
                    ),
                }
            ),
        }
    )


def _without_nccl(*, cuda: bool, device: str, own_gpus: bool | None) -> list[str]:
    """Why NCCL cannot be had."""
    if not cuda:
        why = "this machine has none that torch can use"
    elif device != "cuda":
        why = f'cluster.device = "{device}"'
    elif own_gpus is False:
        why = "there are fewer of them than workers, which NCCL cannot share"
    else:
        return []
    return [
        f'cluster.transport = "nccl" moves tensors between CUDA devices, and {why}; use "auto" or '
        '"gloo"'
    ]


def _resolve_parallel(config: RunConfig) -> ParallelConfig:
    parallel = config.parallel
    update: dict[str, Any] = {
        "residual": _fill(parallel.residual, _usual_residual(config)),
        "profile": _fill(parallel.profile, "on" if _profile_pays(config) else "off"),
    }
    filled = parallel.model_copy(update=update)
    if filled.profile == "on":
        return filled
    depth = depth_in_flight(
        filled, config.micro_batches, all_of_step=config.train.loss.balances_step
    )
    return filled.model_copy(update={"in_flight": depth})


def _usual_residual(config: RunConfig) -> str:
    """The one that costs no bytes of its own, where there is one."""
    if config.parallel.groups == 1:
        return "local"
    beside = config.model.shared_width > 0 and config.parallel.shared_experts == "attention"
    return "direct" if beside else "fused"


def _profile_pays(config: RunConfig) -> bool:
    parallel = config.parallel
    return (
        parallel.costs == USUAL
        and not parallel.one_by_one
        and config.train.steps >= LEAST_PROFILED_RUN
    )


def depth_in_flight(
    parallel: ParallelConfig, micro_batches: int, *, all_of_step: bool = False
) -> int:
    """Return the micro-batches in flight of a resolved section: `in_flight`, or where it is still 0
    all of them, where the loss asks for that, else what its costs ask for."""
    if parallel.in_flight:
        return parallel.in_flight
    if all_of_step:
        return micro_batches
    if parallel.one_by_one:
        return 1
    depth = ring_depth(
        parallel.costs,
        groups=parallel.groups,
        residual=parallel.residual,
        colocated=parallel.schedule in COLOCATED,
    )
    return min(depth, parallel.max_in_flight or depth, micro_batches)


def _fill(value: str, automatic: str) -> str:
    return automatic if value == "auto" else value
