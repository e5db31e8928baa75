"""Ratios, bounds and checks of made-up measurements."""

from dataclasses import replace

import pytest

from disagmoe.bench.hosts import LinkBytes
from disagmoe.bench.limits import floor_s
from disagmoe.bench.overlap import Comparison, Measured
from disagmoe.bench.sample import CpuSeconds, Sample, load_of
from disagmoe.bench.scenarios import EP_1F1B, SCENARIOS, SYSTEMS, TWO_TO_ONE, Scenario
from disagmoe.bench.tuned import Tuned
from disagmoe.bench.verdict import as_json, best_colocated, checks
from disagmoe.schedule.accounting import Shares
from disagmoe.schedule.compile import build_programs
from disagmoe.schedule.costs import OpCosts
from disagmoe.schedule.ir import ProgramSpec
from disagmoe.schedule.layout import Layout

SPEC = ProgramSpec(layout=Layout(layers=2), micro_batches=4, training=True)
TUNED = Tuned(
    micro_batch_size=1,
    costs=OpCosts(),
    compiled=build_programs(SPEC, schedule="af_pipe", in_flight=4),
)
EQUAL = next(scenario for scenario in SCENARIOS if scenario.name == "equal")
UNEQUAL = next(scenario for scenario in SCENARIOS if scenario.name == "unequal")
RATE_MBIT = 80.0


def sample(step_s: float, compute_s: float, megabytes: float, loss: float) -> Sample:
    busy = compute_s / step_s
    shares = Shares(utilisation=busy, exposed_communication=1 - busy, bubble=0.0)
    link = LinkBytes(sent=int(megabytes * 1e6), received=int(megabytes * 1e6) - 1000)
    return Sample(
        step_s=step_s,
        loss=loss,
        ops_s=(compute_s - 0.1, compute_s / 2 - 0.1),
        rest_s=(0.1, 0.1),
        shares=(shares, shares),
        hops={},
        links=(link, link),
        cpu=CpuSeconds(program=compute_s, transport=0.1, ray=0.05, driver=0.01),
        memory_bytes={},
    )


def measured(
    name: str, steps_s: list[float], compute_s: float, megabytes: float, loss: float = 5.0
) -> Measured:
    system = next(system for system in SYSTEMS + TWO_TO_ONE if system.name == name)
    samples = tuple(sample(step_s, compute_s, megabytes, loss) for step_s in steps_s)
    load = load_of(samples)
    return Measured(
        system=system,
        tuned=TUNED,
        samples=samples,
        load=load,
        floor_s=floor_s(load, RATE_MBIT, exposed=system.schedule == EP_1F1B),
        lower_bound_s=floor_s(load, RATE_MBIT, exposed=system.schedule == EP_1F1B),
    )


def comparison(scenario: Scenario = EQUAL) -> Comparison:
    """Plain EP: 2 s of compute, 2 s of wire; overlapped 2 s; the split 2.4 s of wire."""
    return Comparison(
        scenario=scenario,
        rate_mbit=RATE_MBIT,
        multiple=1.0,
        systems={
            "af_pipe": measured("af_pipe", [2.5, 2.4, 9.0], 2.0, 24.0),
            "ep_1f1b": measured("ep_1f1b", [4.2, 4.0, 4.4], 2.0, 20.0),
            "ep_overlap": measured("ep_overlap", [2.2, 2.1, 2.3], 2.0, 20.0),
        },
        pinned=True,
    )


def test_ratios_are_of_medians_and_allowed_ones_of_bounds() -> None:
    figures = as_json([comparison()], rounds=3)
    assert figures["headline"] == {
        "rate_mbit": RATE_MBIT,
        "vs_ep": pytest.approx(4.2 / 2.5),
        "vs_ep_allowed": pytest.approx(4.0 / 2.4),
        "vs_ep_overlap": pytest.approx(2.2 / 2.5),
        "vs_ep_overlap_allowed": pytest.approx(2.0 / 2.4),
        "ep_exposed_share": pytest.approx(1 - 2.0 / 4.2),
    }
    assert figures["valid"] is True
    assert figures["rounds"] == 3


def test_unequal_hosts_compare_with_the_best_of_today_and_the_best_with_shares() -> None:
    on_unequal = comparison(UNEQUAL)
    assert best_colocated(on_unequal) == "ep_overlap"
    assert best_colocated(on_unequal, shared=True) is None
    today = {
        "best_colocated": "ep_overlap",
        "vs_best_colocated": pytest.approx(2.2 / 2.5),
        "allowed": pytest.approx(2.0 / 2.4),
    }
    assert as_json([on_unequal], rounds=3)["unequal"] == today
    shared = {
        system.name: measured(system.name, [2.0 + at] * 3, 1.5, 20.0)
        for at, system in enumerate(TWO_TO_ONE)
    }
    with_shares = replace(on_unequal, systems={**on_unequal.systems, **shared})
    assert as_json([with_shares], rounds=3)["unequal"] == {
        **today,
        "best_with_shares": "ep_1f1b_2:1",
        "vs_best_with_shares": pytest.approx(2.0 / 2.5),
        "allowed_with_shares": pytest.approx(3.5 / 2.4),
    }


def test_a_system_reports_how_near_it_is_to_its_bound() -> None:
    (figures,) = as_json([comparison()], rounds=3)["scenarios"]
    split = figures["systems"]["af_pipe"]
    assert split["busy_share_of_allowed"] == pytest.approx(2.4 / 2.5)
    assert split["over_lower_bound"] == pytest.approx(2.5 / 2.4)
    assert split["wire_s"] == pytest.approx(2.4)
    assert split["over_floor"] == pytest.approx(2.5 / 2.4)
    assert split["compute_s"] == [2.0, 1.0]
    assert (split["micro_batch_size"], split["in_flight"]) == (1, 4)


def test_a_badly_made_opponent_makes_it_invalid() -> None:
    slow = comparison()
    slow = replace(
        slow, systems={**slow.systems, "ep_1f1b": measured("ep_1f1b", [4.5] * 3, 2.0, 20.0)}
    )
    failed = [name for name, holds in checks([slow]).items() if not holds]
    assert failed == ["equal at 80 Mbit/s: ep_1f1b within 10 % of compute plus bytes over rate"]
    assert as_json([slow], rounds=3)["valid"] is False


def test_other_losses_make_it_invalid() -> None:
    off = comparison()
    off = replace(
        off, systems={**off.systems, "af_pipe": measured("af_pipe", [2.5] * 3, 2.0, 24.0, 5.1)}
    )
    failed = [name for name, holds in checks([off]).items() if not holds]
    assert failed == ["equal at 80 Mbit/s: same losses"]


def test_a_worker_that_roams_makes_it_invalid() -> None:
    failed = [
        name for name, holds in checks([replace(comparison(), pinned=False)]).items() if not holds
    ]
    assert failed == ["equal at 80 Mbit/s: workers pinned to their host's core"]
