"""Programs and simulated times of a small catalogue: a change of either shows as a text diff."""

from pathlib import Path

import pytest

from disagmoe.schedule.compile import build_programs
from disagmoe.schedule.costs import OpCosts
from disagmoe.schedule.ir import ProgramSpec
from disagmoe.schedule.layout import Layout
from disagmoe.schedule.planned import planned_chart
from disagmoe.schedule.render import draw, summarize
from disagmoe.schedule.text import read_programs, write_program
from disagmoe.schedule.verify import verify


def spec(
    layers, groups, micro_batches, *, colocated=False, fused=False, workers_per_host=0, **kwargs
):
    layout = Layout(
        layers=layers,
        groups=groups,
        direct_residual=groups > 1 and not fused,
        fused_residual=fused,
        colocated=colocated,
        workers_per_host=workers_per_host,
    )
    return ProgramSpec(layout=layout, micro_batches=micro_batches, **kwargs)


# name: spec, schedule, micro-batches in flight
PROGRAMS = {
    "one-group": (spec(2, 1, 3, reduce_counts=True), "af_pipe", 2),
    "two-groups-direct": (spec(3, 2, 2), "af_pipe", 2),
    "two-groups-fused": (spec(2, 2, 2, fused=True), "af_pipe", 2),
    "split-backward": (spec(2, 1, 2, split_backward=True), "af_pipe", 2),
    "evaluation": (spec(2, 2, 2, training=False), "af_pipe", 2),
    "ep-1f1b": (spec(2, 1, 2, colocated=True, reduce_counts=True), "ep_1f1b", 1),
    "ep-overlap": (spec(2, 1, 2, colocated=True), "ep_overlap", 2),
    "two-hops": (spec(2, 1, 2, workers_per_host=2), "af_pipe", 2),
    "ep-1f1b-ring": (spec(2, 2, 2, colocated=True), "ep_1f1b", 2),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name, golden):
    what, schedule, in_flight = PROGRAMS[name]
    programs = build_programs(what, schedule=schedule, in_flight=in_flight).programs
    for program in programs.programs:
        golden(f"schedules/{name}/{program.group}.sched", write_program(program, what))


@pytest.mark.parametrize("name", PROGRAMS)
def test_golden_programs_are_legal_as_they_stand(name):
    folder = Path(__file__).parent / "schedules" / name
    verify(read_programs([path.read_text(encoding="utf-8") for path in folder.glob("*.sched")]))


SLOW_NETWORK = OpCosts(
    rows=1.5, outputs=1.5, residual=0.75, doutputs=1.5, drows=1.5, dresidual=0.75
)
HEAVY_EXPERTS = OpCosts(experts_fwd=1.5, experts_bwd=3.0)
COSTS = {"default": OpCosts(), "slow network": SLOW_NETWORK, "heavy experts": HEAVY_EXPERTS}
# layers, groups, micro-batches, in flight
SIZES = [(8, 1, 8, 1), (8, 1, 8, 2), (8, 1, 8, 4), (8, 2, 8, 6), (8, 4, 16, 12), (9, 4, 16, 12)]


def test_makespans(golden):
    lines = ["costs          layers groups micro-batches in-flight  makespan    idle  peak slots"]
    for label, costs in COSTS.items():
        for layers, groups, micro_batches, in_flight in SIZES:
            compiled = build_programs(
                spec(layers, groups, micro_batches),
                schedule="af_pipe",
                in_flight=in_flight,
                costs=costs,
            )
            chart = planned_chart(compiled, "")
            idle = 1 - chart.shares.utilisation
            peak = max(summary.peak_slots for summary in summarize(compiled, chart))
            lines.append(
                f"{label:<14} {layers:6d} {groups:6d} {micro_batches:13d} {in_flight:9d} "
                f"{compiled.timeline.makespan:9.2f} {100 * idle:5.1f} % {peak:11d}"
            )
    golden("schedules/makespans.txt", "\n".join(lines) + "\n")


def test_drawing(golden):
    what, schedule, in_flight = PROGRAMS["two-groups-direct"]
    compiled = build_programs(what, schedule=schedule, in_flight=in_flight)
    golden("schedules/timeline.txt", draw(planned_chart(compiled, ""), width=100) + "\n")
