"""From the reports of all workers to one view of a step."""

from collections.abc import Mapping, Sequence

from disagmoe.actors.events import EvalResult, StepResult
from disagmoe.runtime.clock import Kind
from disagmoe.runtime.report import EvalReport, StepReport
from disagmoe.schedule.layout import Worker


def merge_step(reports: Mapping[str, StepReport], elapsed_s: float) -> StepResult:
    """Merge the reports of one step by worker name; `elapsed_s` is its duration.

    Global numbers are the same on all workers and taken from the first.
    """
    first = next(iter(reports.values()))
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
        step_s=elapsed_s,
        tokens_per_s=first.tokens / elapsed_s,
        compute_share=compute_share([{name: r.seconds for name, r in reports.items()}]),
        seconds={name: dict(report.seconds) for name, report in reports.items()},
        expert_load=tuple(_load(choices_E) for choices_E in first.choices_LE),
        peak_memory_bytes={name: report.peak_memory_bytes for name, report in reports.items()},
    )


def merge_eval(step: int, reports: Mapping[str, EvalReport], elapsed_s: float) -> EvalResult:
    """Merge the reports of the evaluation after `step`; they are the same on all workers."""
    first = next(iter(reports.values()))
    return EvalResult(
        step=step, loss=first.loss, valid_targets=first.valid_targets, elapsed_s=elapsed_s
    )


def compute_share(steps: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, float]:
    """Return by group: seconds of compute over all seconds, of all its workers over `steps`.

    Each of `steps` gives the seconds by worker and kind, as `StepResult.seconds` does.
    """
    computing: dict[str, float] = {}
    total: dict[str, float] = {}
    for workers in steps:
        for worker, seconds in workers.items():
            group = str(Worker.parse(worker).group)
            computing[group] = computing.get(group, 0.0) + seconds[Kind.COMPUTE]
            total[group] = total.get(group, 0.0) + sum(seconds.values())
    return {group: computing[group] / total[group] if total[group] else 0.0 for group in total}


def _load(choices_E: Sequence[int]) -> float:
    mean = sum(choices_E) / len(choices_E)
    return max(choices_E) / mean if mean else 0.0
