"""Programs for the rest of a run, made for what its first steps have cost."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from disagmoe.actors.assignments import assignments, write_programs
from disagmoe.actors.drive import Traces
from disagmoe.actors.events import ScheduleTuned
from disagmoe.actors.messages import RunPlan, WorkerAssignment
from disagmoe.runtime.tune import tune
from disagmoe.schedule.from_config import compile_for


def retuned(
    plan: RunPlan, steps: Sequence[Traces], store_port: int
) -> tuple[ScheduleTuned, list[WorkerAssignment]]:
    """Tune the run of `plan` by the traces of `steps`: compile, verify and write its programs, and
    return them as assignments."""
    tuned = tune(plan.config, steps)
    train, evaluation = compile_for(tuned.config)
    programs = write_programs(Path(plan.run_dir) / "programs", train, evaluation)
    event = ScheduleTuned(
        config=tuned.config,
        seconds=tuned.seconds,
        expert_shares=tuned.expert_shares,
        planned_s=train.timeline.makespan,
        gap=train.gap,
        programs_sha256=programs,
    )
    return event, assignments(replace(plan, config=tuned.config), train, evaluation, store_port)
