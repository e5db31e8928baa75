"""What a bench of predictions has shown: errors of steps and memory, and of the choice."""

import statistics
from collections.abc import Sequence
from typing import Any

from disagmoe.bench.predict import Case
from disagmoe.bench.sample import medians

MEDIAN_ERROR, WORST_ERROR, MEMORY_ERROR, PICK_REGRET = 0.10, 0.20, 0.15, 0.05
"""Limits."""


def pick_regret(cases: Sequence[Case]) -> float:
    """The most by which the system that was predicted to be fastest is slower than the one that
    is, under any conditions."""
    return max(regrets(cases).values())


def regrets(cases: Sequence[Case]) -> dict[str, float]:
    """Step of the predicted best over that of the measured best, less 1, by conditions."""
    grouped: dict[str, list[Case]] = {}
    for case in cases:
        grouped.setdefault(case.conditions.name, []).append(case)
    return {
        name: min(one, key=lambda case: case.predicted.step_s).step_s
        / min(case.step_s for case in one)
        - 1
        for name, one in grouped.items()
    }


def checks(cases: Sequence[Case]) -> dict[str, bool]:
    """Return what should hold, by name."""
    errors = [abs(case.error) for case in cases]
    return {
        f"median error of steps at most {MEDIAN_ERROR:.0%}": (
            statistics.median(errors) <= MEDIAN_ERROR
        ),
        f"worst error of steps at most {WORST_ERROR:.0%}": max(errors) <= WORST_ERROR,
        f"median error of memory at most {MEMORY_ERROR:.0%}": memory_error(cases) <= MEMORY_ERROR,
        f"the choice costs at most {PICK_REGRET:.0%}": pick_regret(cases) <= PICK_REGRET,
    }


def memory_error(cases: Sequence[Case]) -> float:
    """Median over all workers of all cases."""
    return statistics.median(abs(error) for case in cases for error in case.memory_errors)


def as_json(cases: Sequence[Case], rounds: int) -> dict[str, Any]:
    """Return all figures as one JSON object."""
    errors = [abs(case.error) for case in cases]
    found = checks(cases)
    return {
        "valid": all(found.values()),
        "checks": found,
        "rounds": rounds,
        "median_error": statistics.median(errors),
        "worst_error": max(errors),
        "memory_median_error": memory_error(cases),
        "pick_regret": pick_regret(cases),
        "regrets": regrets(cases),
        "cases": [_case(case) for case in cases],
    }


def _case(case: Case) -> dict[str, Any]:
    return {
        "scenario": case.conditions.scenario.name,
        "rate_mbit": case.conditions.rate_mbit,
        "system": case.predicted.system.name,
        "settings": list(case.predicted.settings),
        "predicted_s": case.predicted.step_s,
        "measured_s": case.step_s,
        "steps_s": [sample.step_s for sample in case.samples],
        "error": case.error,
        "predicted_ops_s": list(case.predicted.ops_s),
        "measured_ops_s": [
            statistics.median(seconds)
            for seconds in zip(*(sample.ops_s for sample in case.samples), strict=True)
        ],
        "cpu_s": medians([sample.cpu for sample in case.samples]),
        "predicted_memory_bytes": dict(case.predicted.memory_bytes),
        "measured_memory_bytes": dict(case.memory_bytes),
    }
