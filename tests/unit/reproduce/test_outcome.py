"""Simulated cases against their bounds and roofs, and the division that is chosen."""

import pytest

from disagmoe.planner.roofline import roofs_of
from disagmoe.reproduce.models import DEEPSEEK_MOE, GPT_OSS
from disagmoe.reproduce.outcome import Case, balanced, outcome, outcomes, roof_s, split_times
from disagmoe.reproduce.setting import CALIBRATIONS, Setting, Split, even, split_run

FEW = DEEPSEEK_MOE.model_copy(update={"layers": 4})


def at(**more):
    usual = {"model": FEW, "length": 4096, "calibration": "h800-paperfit"}
    return Setting(**(usual | more))


@pytest.mark.parametrize("calibration", CALIBRATIONS)
def test_no_outcome_beats_its_bound_or_its_roof(calibration):
    setting = at(calibration=calibration)
    found = outcome(Case(setting=setting, split=even(setting)))
    assert found.seconds >= found.bound >= found.compute
    assert found.seconds >= found.roof
    assert found.compute + found.exposed <= found.seconds * (1 + 1e-9)
    assert 0 < found.states < found.fullest


def test_the_chosen_division_has_the_lowest_of_all_highest_roofs():
    setting = at(model=GPT_OSS, length=16384)
    chosen = balanced(setting)
    roofs = {}
    for attention in range(4, 29):
        split = Split(attention=attention, experts=32 - attention)
        roofs[split] = roof_s(setting, split, roofs_of(split_times(setting, split)))
    assert roofs[chosen] == min(roofs.values())
    assert chosen == Split(attention=20, experts=12)


def test_both_sides_keep_their_cards():
    """16 each, however many workers there are."""
    run = split_run(at(), Split(attention=20, experts=12))
    assert run.hardware.attention_nics * 20 == pytest.approx(16)
    assert run.hardware.expert_nics * 12 == pytest.approx(16)
    assert run.parallel.micro_batch_size == 20


def test_the_same_case_is_simulated_once():
    setting = at()
    cases = [Case(setting=setting), Case(setting=setting)]
    assert list(outcomes(cases, 1)) == cases[:1]


def test_no_cases_need_no_processes():
    assert outcomes([], 2) == {}


def test_a_head_and_more_layers_take_longer():
    plain = outcome(Case(setting=at(), split=even(at())))
    headed = outcome(Case(setting=at(head=True), split=even(at())))
    assert headed.seconds > 1.1 * plain.seconds
