"""The best settings of a layout on given hosts: a traced step gives costs, costs give a plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from disagmoe.bench.measured import cost_settings, measured_costs, size_setting
from disagmoe.bench.rig import Rig
from disagmoe.config.load import override
from disagmoe.config.run import RunConfig
from disagmoe.runtime.trace import WorkerTrace
from disagmoe.schedule.compile import Compiled
from disagmoe.schedule.costs import OpCosts
from disagmoe.schedule.from_config import programs_for

DEEP = 8
"""Micro-batches in flight that are tried beside the usual number and all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """A system with its best settings at a rate."""

    micro_batch_size: int
    costs: OpCosts
    """What its ops and transfers took."""
    compiled: Compiled
    traces: Mapping[str, WorkerTrace] = field(default_factory=dict)
    """Of each worker in the step that was measured."""

    @property
    def settings(self) -> list[str]:
        """Its part of a run config."""
        return [
            size_setting(self.micro_batch_size),
            f"parallel.in_flight={self.compiled.timeline.in_flight}",
            *cost_settings(self.costs),
        ]


def tuned_by_a_step(rig: Rig, config: RunConfig) -> Tuned:
    """Measure what ops and transfers of `config` take in a step of `rig`, and plan with that, with
    as many micro-batches in flight as is best. Raises WorkerError when a worker fails."""
    rig.set_up(override(config, ["trace.first_step=0", "trace.steps=1"]))
    done = rig.step()
    costs = measured_costs([done])
    traces = {worker: one.trace for worker, one in done.reports.items() if one.trace}
    request = programs_for(config)
    count = request.spec.micro_batches
    plans = [
        replace(request, in_flight=in_flight, costs=costs).build()
        for in_flight in sorted({request.in_flight, min(DEEP, count), count})
    ]
    best = min(plans, key=lambda plan: plan.timeline.makespan)
    size = config.parallel.micro_batch_size
    return Tuned(micro_batch_size=size, costs=costs, compiled=best, traces=traces)
