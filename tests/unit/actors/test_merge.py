"""One view of a step from the reports of all workers."""

from disagmoe.actors.events import EvalResult, StepResult
from disagmoe.actors.merge import compute_share, group_shares, merge_eval, merge_step
from disagmoe.runtime.report import EvalReport, HopCounts
from disagmoe.schedule.accounting import Shares
from tests.unit.actors.fakes import step_report


def shares(utilisation: float, exposed: float, bubble: float) -> Shares:
    return Shares(utilisation=utilisation, exposed_communication=exposed, bubble=bubble)


def test_a_step_has_global_numbers_once_and_the_workers_own_by_name() -> None:
    reports = {
        "A0.0": step_report(2, compute_s=3.0),
        "A0.1": step_report(2, compute_s=1.0),
        "F0.0": step_report(2, compute_s=0.0),
    }
    assert merge_step(reports, 4.0) == StepResult(
        step=2,
        loss=3.0,
        balance=2.0,
        z=3.0,
        grad_norm=0.5,
        lr=1e-3,
        tokens=100,
        valid_targets=90,
        skipped="",
        stopped=False,
        saving=False,
        step_s=4.0,
        tokens_per_s=25.0,
        compute_share={"A0": 4 / 6, "F0": 0.0},
        shares={"A0": shares(4 / 6, 2 / 6, 0.0), "F0": shares(0.0, 1.0, 0.0)},
        seconds={name: report.seconds for name, report in reports.items()},
        channel_bytes={"A0>F0.act": 3 * 64, "world": 3 * 8},
        channel_messages={"A0>F0.act": 6, "world": 3},
        hops={"inter": HopCounts(rows=90, exact_rows=90, nbytes=192)},
        expert_load=(1.5, 1.0, 0.0),
        expert_variation=(0.5, 0.0, 0.0),
        dead_experts=(0, 0, 2),
        peak_memory_bytes={"A0.0": 1002, "A0.1": 1002, "F0.0": 1002},
    )


def test_shares_of_several_steps_weigh_by_time() -> None:
    steps = [
        {"A0.0": {"compute": 1.0, "idle": 0.0}, "F1.0": {"compute": 0.0, "idle": 0.0}},
        {"A0.0": {"compute": 0.0, "idle": 3.0}, "F1.0": {"compute": 0.0, "idle": 0.0}},
    ]
    assert compute_share(steps) == {"A0": 0.25, "F1": 0.0}
    assert group_shares(steps) == {"A0": shares(0.25, 0.0, 0.75), "F1": shares(0.0, 0.0, 0.0)}
    assert compute_share([]) == group_shares([]) == {}


def test_an_evaluation() -> None:
    report = EvalReport(loss=1.5, valid_targets=9)
    assert merge_eval(4, {"A0.0": report, "F0.0": report}, 0.5) == EvalResult(
        step=4, loss=1.5, valid_targets=9, elapsed_s=0.5
    )
