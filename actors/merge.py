"""From the reports of all workers to one view of a step."""

from collections.abc import Iterable, Mapping, Sequence

from disagmoe.actors.events import EvalResult, StepResult
from disagmoe.metrics import load
from disagmoe.runtime.report import EvalReport, HopCounts, StepReport
from disagmoe.schedule.accounting import Kind, Shares, add_up
from disagmoe.schedule.layout import Worker
from disagmoe.transport.counted import Traffic

Steps = Sequence[Mapping[str, Mapping[str, float]]]
"""Seconds of several steps by worker and kind, as `StepResult.seconds` gives those of one."""


def merge_step(reports: Mapping[str, StepReport], elapsed_s: float) -> StepResult:
    """Merge the reports of one step by worker name; `elapsed_s` is its duration.

    Global numbers are the same on all workers and taken from the first.
    """
    first = next(iter(reports.values()))
    seconds = {name: dict(report.seconds) for name, report in reports.items()}
    sent = add_traffic(report.traffic for report in reports.values())
    return StepResult(
        step=first.step,
        loss=first.loss,
        balance=first.balance,
        z=first.z,
        grad_norm=first.grad_norm,
        lr=first.lr,
        tokens=first.tokens,
        valid_targets=first.valid_targets,
        skipped=first.skipped,
        stopped=first.stopped,
        saving=first.saving,
        step_s=elapsed_s,
        tokens_per_s=first.tokens / elapsed_s,
        compute_share=compute_share([seconds]),
        shares=group_shares([seconds]),
        seconds=seconds,
        channel_bytes={name: traffic.nbytes for name, traffic in sent.items()},
        channel_messages={name: traffic.messages for name, traffic in sent.items()},
        hops=add_hops(report.hops for report in reports.values()),
        expert_load=tuple(map(load.max_over_mean, first.choices_LE)),
        expert_variation=tuple(map(load.variation, first.choices_LE)),
        dead_experts=tuple(map(load.dead, first.choices_LE)),
        peak_memory_bytes={name: report.peak_memory_bytes for name, report in reports.items()},
    )


def merge_eval(step: int, reports: Mapping[str, EvalReport], elapsed_s: float) -> EvalResult:
    """Merge the reports of the evaluation after `step`; they are the same on all workers."""
    first = next(iter(reports.values()))
    return EvalResult(
        step=step, loss=first.loss, valid_targets=first.valid_targets, elapsed_s=elapsed_s
    )


def compute_share(steps: Steps) -> dict[str, float]:
    """Return by group: seconds of compute over all seconds, of all its workers over `steps`."""
    return {
        group: seconds[Kind.COMPUTE] / (sum(seconds.values()) or 1.0)
        for group, seconds in group_seconds(steps).items()
    }


def group_shares(steps: Steps) -> dict[str, Shares]:
    """Return by group what became of the time of all its workers over `steps`."""
    return {group: Shares.of(seconds) for group, seconds in group_seconds(steps).items()}


def group_seconds(steps: Steps) -> dict[str, dict[str, float]]:
    """Return by group the seconds of all its workers in all rings over `steps`, by kind."""
    parts: dict[str, list[Mapping[str, float]]] = {}
    for workers in steps:
        for worker, seconds in workers.items():
            parts.setdefault(str(Worker.parse(worker).group), []).append(seconds)
    return {group: add_up(found) for group, found in parts.items()}


def add_traffic(parts: Iterable[Mapping[str, Traffic]]) -> dict[str, Traffic]:
    """Return what all workers sent together, by channel."""
    total: dict[str, Traffic] = {}
    for part in parts:
        for name, one in part.items():
            before = total.get(name, Traffic(0, 0))
            total[name] = Traffic(before.messages + one.messages, before.nbytes + one.nbytes)
    return total


def add_hops(parts: Iterable[Mapping[str, HopCounts]]) -> dict[str, HopCounts]:
    """Return what all workers counted together, by hop."""
    total: dict[str, HopCounts] = {}
    for part in parts:
        for hop, one in part.items():
            total[hop] = total[hop] + one if hop in total else one
    return total
