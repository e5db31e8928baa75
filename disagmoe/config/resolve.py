"""Automatic settings replaced by what they stand for on one machine."""

from typing import Any

from disagmoe.config.costs import ring_depth
from disagmoe.config.parallel import COLOCATED, ParallelConfig
from disagmoe.config.rules import problems
from disagmoe.config.run import RunConfig
from disagmoe.errors import ConfigError


def resolve(config: RunConfig, *, cuda: bool) -> RunConfig:
    """Return `config` with every `auto` filled in; `cuda` says whether a CUDA device is here.

    Resolving twice changes nothing. Settings that depend on the machine's cores
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
    if found:
        raise ConfigError(found)
    device = _fill(config.cluster.device, "cuda" if cuda else "cpu")
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
                update={"device": device, "transport": _fill(config.cluster.transport, "gloo")}
            ),
        }
    )


def _resolve_parallel(config: RunConfig) -> ParallelConfig:
    parallel = config.parallel
    residual = _fill(parallel.residual, "local" if parallel.groups == 1 else "fused")
    update: dict[str, Any] = {"residual": residual}
    if parallel.in_flight == 0:
        update["in_flight"] = _in_flight(parallel, residual, config.micro_batches)
    return parallel.model_copy(update=update)


def _in_flight(parallel: ParallelConfig, residual: str, micro_batches: int) -> int:
    if parallel.one_by_one:
        return 1
    depth = ring_depth(
        parallel.costs,
        groups=parallel.groups,
        residual=residual,
        colocated=parallel.schedule in COLOCATED,
    )
    return min(depth, parallel.max_in_flight or depth, micro_batches)


def _fill(value: str, automatic: str) -> str:
    return automatic if value == "auto" else value
