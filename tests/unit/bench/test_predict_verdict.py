"""Errors of predictions, and what a choice by them costs."""

import pytest

from disagmoe.bench.predict import Case, Conditions, Prediction
from disagmoe.bench.predict_verdict import as_json, checks, memory_error, pick_regret, regrets
from disagmoe.bench.sample import CpuSeconds, Sample
from disagmoe.bench.scenarios import SCENARIOS, SYSTEMS

SLOW, FAST = (Conditions(scenario=SCENARIOS[0], rate_mbit=rate) for rate in (64.0, 1000.0))


def case(conditions, system, predicted_s, *steps_s, memory=(1.0, 1.0)):
    """`memory`: predicted and measured, of one worker."""
    return Case(
        conditions=conditions,
        predicted=Prediction(
            system=system,
            settings=(),
            step_s=predicted_s,
            ops_s=(1.0,),
            memory_bytes={"A0.0": memory[0]},
        ),
        samples=tuple(
            Sample(
                step_s=step_s,
                loss=1.0,
                ops_s=(1.0,),
                rest_s=(0.0,),
                shares=(),
                links=(),
                cpu=CpuSeconds(program=1.0, transport=0.0, ray=0.0, driver=0.0),
                memory_bytes={},
                hops={},
            )
            for step_s in steps_s
        ),
        memory_bytes={"A0.0": memory[1]},
    )


CASES = [
    case(SLOW, SYSTEMS[0], 1.9, 2.5, 2.0, 1.0),
    case(SLOW, SYSTEMS[1], 1.5, 2.2, 2.2),
    case(FAST, SYSTEMS[0], 1.05, 1.0, memory=(1.1, 1.0)),
    case(FAST, SYSTEMS[1], 1.2, 1.1, memory=(0.9, 1.0)),
]


def test_errors_are_of_the_median_step():
    assert [one.error for one in CASES] == pytest.approx([-0.05, -0.3182, 0.05, 0.0909], abs=1e-4)
    assert memory_error(CASES) == pytest.approx(0.05)


def test_a_choice_costs_what_the_measured_best_would_have_saved():
    assert regrets(CASES) == {SLOW.name: pytest.approx(0.1), FAST.name: 0.0}
    assert pick_regret(CASES) == pytest.approx(0.1)


def test_what_is_missed_is_said():
    assert checks(CASES) == {
        "median error of steps at most 10%": True,
        "worst error of steps at most 20%": False,
        "median error of memory at most 15%": True,
        "the choice costs at most 5%": False,
    }
    figures = as_json(CASES, rounds=3)
    assert not figures["valid"]
    assert figures["worst_error"] == pytest.approx(0.3182, abs=1e-4)
    assert as_json(CASES[2:], rounds=1)["valid"]
