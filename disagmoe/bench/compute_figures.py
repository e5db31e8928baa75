"""The figures of `bench compute`: what its JSON holds, and whether the sides did the same."""

import platform
import statistics
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import ray
import torch

from disagmoe import __version__
from disagmoe.bench.compute import IMPLEMENTATIONS, REFERENCE, RUN, Outcome, Side
from disagmoe.bench.hf_model import check_transformers

LOSS_TOLERANCE = {"fp64": 1e-9, "fp32": 1e-5, "bf16": 2e-3}
NORM_TOLERANCE = {"fp64": 1e-6, "fp32": 1e-3, "bf16": 2e-2}
"""Largest relative difference in the first step that counts as rounding. In bf16, of 8 bits, some
tokens go to other experts, as Transformers' router is in bf16 and ours in fp32. Losses of random
weights are near log(vocabulary) whatever the model does; the norm of all gradients is not."""
SHOWN_STEPS = 5


def step_s(side: Side) -> float:
    """Median step of a side that ran."""
    return statistics.median(side.steps_s)


def fastest(outcome: Outcome) -> Side:
    """The implementation of Transformers that took the least time per token in the rounds."""
    played = [
        side
        for name, side in outcome.sides.items()
        if name in IMPLEMENTATIONS and not side.left_out
    ]
    return max(played, key=tokens_per_s)


def tokens_per_s(side: Side) -> float:
    """Tokens of a step over its median duration."""
    return side.step_tokens / step_s(side)


def loss_difference(outcome: Outcome) -> float:
    """Largest relative difference of the first step's loss, of any side from our run."""
    return _difference(side.learned[0].loss for side in _trained(outcome))


def norm_difference(outcome: Outcome) -> float:
    """Largest relative difference of the first step's gradient norm, of any side from our run."""
    return _difference(side.learned[0].grad_norm for side in _trained(outcome))


def checks(outcome: Outcome) -> dict[str, bool]:
    """Return what must hold for the comparison to mean anything, by name."""
    precision = outcome.config.train.precision
    return {
        "same loss of the first step": loss_difference(outcome) <= LOSS_TOLERANCE[precision],
        "same gradient norm of the first step": (
            norm_difference(outcome) <= NORM_TOLERANCE[precision]
        ),
    }


def lower_bound_s(outcome: Outcome) -> float:
    """All products of a step at the best rate of this machine."""
    return outcome.flops / outcome.gemm_flops_per_s


def as_json(outcome: Outcome, rounds: int) -> dict[str, Any]:
    """The object that `bench compute --json` prints."""
    theirs, reference, run = fastest(outcome), outcome.sides[REFERENCE], outcome.sides[RUN]
    found = checks(outcome)
    return {
        "valid": all(found.values()),
        "checks": found,
        "transformers_tokens_per_s": tokens_per_s(theirs),
        "reference_tokens_per_s": tokens_per_s(reference),
        "run_tokens_per_s": tokens_per_s(run),
        "transformers_experts": theirs.name,
        "run_over_transformers": tokens_per_s(run) / tokens_per_s(theirs),
        "reference_over_transformers": tokens_per_s(reference) / tokens_per_s(theirs),
        "loss_difference": loss_difference(outcome),
        "grad_norm_difference": norm_difference(outcome),
        "rounds": rounds,
        "cores": outcome.cores,
        "step_flops": outcome.flops,
        "gemm_flops_per_s": outcome.gemm_flops_per_s,
        "lower_bound_s": lower_bound_s(outcome),
        "sides": {name: _side(side) for name, side in outcome.sides.items()},
        "config": outcome.config.model_dump(mode="json", exclude={"data"}),
        "versions": {
            "disagmoe": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "ray": ray.__version__,
            "transformers": check_transformers(),
        },
        "machine": machine(),
    }


def machine() -> str:
    """The processor, as Linux names it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if "model name" in line]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def _side(side: Side) -> dict[str, Any]:
    if not side.steps_s:
        return {"left_out": side.left_out}
    return {
        "tokens_per_s": tokens_per_s(side),
        "step_tokens": side.step_tokens,
        "step_s": step_s(side),
        "steps_s": list(side.steps_s),
        "micro_batch_size": side.micro_batch_size,
        "losses": [learned.loss for learned in side.learned[:SHOWN_STEPS]],
        "grad_norms": [learned.grad_norm for learned in side.learned[:SHOWN_STEPS]],
        "shares": {worker: asdict(shares) for worker, shares in side.shares.items()},
        "left_out": side.left_out,
    }


def _trained(outcome: Outcome) -> list[Side]:
    """Sides that trained on whole batches, our run first."""
    run = outcome.sides[RUN]
    return [run, *(s for s in outcome.sides.values() if s.learned and s is not run)]


def _difference(values: Iterable[float]) -> float:
    ours, *others = values
    return max((abs(other - ours) / abs(ours) for other in others), default=0.0)
