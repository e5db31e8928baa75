"""Rows that need little simulation, and what a report makes of them."""

import json

import pytest

from disagmoe.errors import ConfigError
from disagmoe.reproduce.ablation import OURS, SWITCHES, WAYS, cases, effects
from disagmoe.reproduce.figures import division, shares
from disagmoe.reproduce.figures.overlap import rows_of_5
from disagmoe.reproduce.models import MODELS
from disagmoe.reproduce.outcome import Outcome, outcomes
from disagmoe.reproduce.report import as_json, as_text
from disagmoe.reproduce.rivals import rivals
from disagmoe.reproduce.row import Band, Row
from disagmoe.reproduce.run import reproduce
from disagmoe.reproduce.setting import CALIBRATIONS, Setting, Split

SPLIT = Outcome(
    split=Split(attention=16, experts=16),
    seconds=2.0,
    compute=1.0,
    exposed=0.5,
    bound=1.9,
    bound_name="some",
    roof=1.8,
    binding="some",
    fullest=0.5,
    states=0.2,
)


@pytest.mark.parametrize("calibration", ["h800-paperfit", "h800-paperstep"])
def test_figure_6a_is_what_was_fitted(calibration):
    rows = shares.rows(calibration, {})
    assert [(row.fitted, row.in_band) for row in rows] == [(True, True)] * 6


def test_measured_kernels_are_not_fitted_to_figure_6a():
    rows = shares.rows("h800-kernel", {})
    assert not any(row.fitted for row in rows)
    for row in rows:
        assert row.in_band == (not row.miss)
        factor = 1.0 if row.in_band else float(row.miss.split(" take ")[1].split()[0])
        ours = row.ours * factor / (1 - row.ours + row.ours * factor)
        assert row.in_band or ours == pytest.approx(float(row.paper), abs=0.005)


def test_opponents_leave_less_exposed_the_more_they_overlap():
    by_claim = {row.claim: row.ours for row in rows_of_5("h800-paperfit", {})}
    for model in ("DeepSeek-MoE", "GPT-OSS-120B"):
        left = [
            by_claim[f"{model} 8K share that {name} leaves exposed"]
            for name in ("megatron", "tutel", "comet")
        ]
        assert left == sorted(left, reverse=True)
        assert left[-1] > 0.02


def test_slower_all_to_alls_make_megatron_as_slow_as_asked():
    setting = Setting(model=MODELS["DeepSeek-MoE"], length=4096, calibration="h800-paperfit")
    theirs = rivals(setting)
    whole = theirs.by_name["megatron"].seconds
    assert theirs.network_factor(whole) == pytest.approx(1)
    assert theirs.network_factor(whole + theirs.network) == pytest.approx(2)
    wires = rivals(setting, copies_by_network=False)
    assert wires.network == pytest.approx(theirs.network / 2, rel=0.15)


@pytest.mark.slow
def test_figure_12_has_its_optima():
    """16:16 at 4K and 16:10 at 16K come out of costs that were fitted to figure 6a alone."""
    found = outcomes(division.cases("h800-paperfit"), 1)
    rows = {row.claim: row for row in division.rows("h800-paperfit", found)}
    assert rows["GPT-OSS-120B 4K best split, attention over expert workers"].ours == 1.0
    assert rows["GPT-OSS-120B 16K best split, attention over expert workers"].ours == 1.6


def row(**more):
    usual = {
        "figure": "10",
        "claim": "one",
        "calibration": "h800-paperfit",
        "ours": 1.5,
        "paper": "1.6",
        "band": Band.around(1.6),
    }
    return Row(**(usual | more))


def test_held_out_and_fitted_rows_are_counted_apart():
    rows = [
        row(),
        row(claim="two", ours=1.0, miss="more"),
        row(claim="three", fitted=True),
        row(claim="first hand", second_hand=False, calibration="h800-kernel"),
    ]
    found = json.loads(json.dumps(as_json(rows, [])))
    assert found["held_out"] == {"in_band": 1, "total": 2}
    assert found["held_out_by_calibration"]["h800-kernel"] == {"in_band": 1, "total": 1}
    assert (found["fitted"]["in_band"], found["fitted"]["total"]) == (1, 1)
    assert found["fitted"]["to"] == "figure 6a"
    text = as_text(rows, [])
    assert "h800-paperfit: 1 of 2 held-out rows in band, and 1 of 1 that were fitted" in text
    assert "- figure 10, h800-paperfit, two: more" in text
    assert "1.6*" in text


def test_bands_have_ends():
    assert 1.431 in Band.around(1.59, 1.81)
    assert 1.43 not in Band.around(1.59, 1.81)
    assert 0.98 in Band.points(0.88)


def test_an_ablation_switches_one_thing_at_a_time():
    found = cases("h800-kernel")
    assert len(found) == 3 * 4 * len(SWITCHES)
    assert len(CALIBRATIONS) == 3


def test_rows_per_host_are_shown_for_the_split_and_for_opponents():
    """With figures of the split made up, as they would take a minute."""
    calibration = "h800-kernel"
    made_up = dict.fromkeys(cases(calibration), SPLIT)
    found = effects(calibration, made_up)
    systems = {one.system for one in found}
    assert systems == {OURS, "megatron", "tutel", "comet", "dualpipe", "overlapped"}
    places = {(one.model, one.length) for one in found}
    assert len(places) == 3 * 4
    for system in systems:
        for way in WAYS.values():
            shown = {(x.model, x.length) for x in found if (x.system, x.switch) == (system, way)}
            assert shown == places
    qwen = [one for one in found if (one.model, one.length) == ("Qwen3-235B", 4096)]
    speed = {(one.system, one.switch): one.speed for one in qwen}
    for system in systems - {OURS}:
        # 8 experts of 128 on 16 workers of 2 hosts: 8 rows, 6.6 or 2
        expert, worker, host = (speed[system, WAYS[way]] for way in ("none", "rank", "node"))
        assert host >= worker >= expert == 1
    assert speed["megatron", WAYS["node"]] > 1.2
    text = as_text([], found)
    assert "overlapped, row per host" in text
    assert "speed of the split over others, rows alike, h800-kernel:" in text


def test_an_unknown_experiment_is_refused_with_all_names():
    with pytest.raises(ConfigError) as caught:
        reproduce(["fig7"])
    assert str(caught.value) == (
        "no experiment 'fig7'; there are fig5, fig6a, fig10, fig11, fig12, fig13, fig14, ablation"
    )
