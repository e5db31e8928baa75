"""What has happened in a run, in the log of its driver."""

import logging

from disagmoe.actors.events import (
    CheckpointSaved,
    EvalResult,
    Event,
    RunEnded,
    RunPlaced,
    RunResumed,
    RunStarted,
    ScheduleTuned,
    StepResult,
    StepTraced,
)
from disagmoe.checkpoint.catalogue import names

log = logging.getLogger(__name__)


def log_event(event: Event) -> None:
    """Log an event, and what went wrong in it."""
    log.info("%s", line_of(event))
    if isinstance(event, CheckpointSaved) and event.problem:
        log.warning("%s", event.problem)
    if isinstance(event, RunEnded):
        for failure in event.failures:
            log.error("%s\n%s", failure.message, failure.details)


def line_of(event: Event) -> str:
    """Say an event in one line."""
    match event:
        case RunPlaced():
            return "placed: " + "; ".join(str(seat) for seat in event.seats)
        case RunStarted():
            return "all workers are connected"
        case RunResumed():
            return f"loaded {event.place} in {event.elapsed_s:.2f} s"
        case StepResult():
            return f"step {event.step}: loss {event.loss:.6f}, {event.step_s:.3f} s"
        case EvalResult():
            return f"after step {event.step}: held-out loss {event.loss:.6f}"
        case StepTraced():
            return f"traced the step on {len(event.traces)} workers"
        case ScheduleTuned():
            return f"tuned: {event.config.parallel}"
        case CheckpointSaved():
            deleted = f", deleted {names(event.deleted)}" if event.deleted else ""
            return f"saved {event.place} in {event.elapsed_s:.2f} s{deleted}"
        case RunEnded():
            return f"the run has ended: {event.status}"
