"""What steps of a rig have shown, as settings of a run config."""

from collections.abc import Iterable

from disagmoe.bench.rig import TimedStep
from disagmoe.runtime.profile import Profile
from disagmoe.schedule.costs import OpCosts


def measured_costs(steps: Iterable[TimedStep]) -> OpCosts:
    """Return what ops and transfers took in `steps`, which were traced."""
    traces = [
        {worker: report.trace for worker, report in step.reports.items() if report.trace}
        for step in steps
    ]
    return OpCosts.from_seconds(Profile.of(traces).costs({}))


def size_setting(micro_batch_size: int) -> str:
    """Sequences of a micro-batch."""
    return f"parallel.micro_batch_size={micro_batch_size}"


def cost_settings(costs: OpCosts) -> list[str]:
    """All of `costs`."""
    return [f"parallel.costs.{name}={cost!r}" for name, cost in costs.to_dict().items()]
