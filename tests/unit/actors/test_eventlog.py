import logging

import pytest

from disagmoe.actors.eventlog import line_of, log_event
from disagmoe.actors.events import CheckpointSaved, RunEnded, RunResumed
from tests.unit.actors.fakes import failure

SAVED = CheckpointSaved(
    step=6, place="/c/step-6", size_bytes=1, elapsed_s=1.5, deleted=(2,), problem=""
)


def test_an_event_in_one_line() -> None:
    resumed = RunResumed(step=4, place="/c/step-4", elapsed_s=1.5, same_programs=True)
    assert line_of(resumed) == "loaded /c/step-4 in 1.50 s"
    assert line_of(SAVED) == "saved /c/step-6 in 1.50 s, deleted step-2"
    assert line_of(RunEnded(status="ok")) == "the run has ended: ok"


def test_what_went_wrong_is_logged_as_such(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        log_event(
            CheckpointSaved(
                step=6, place="/c", size_bytes=1, elapsed_s=1.5, deleted=(), problem="no rights"
            )
        )
        log_event(RunEnded(status="failed", failures=(failure("F0.0", "died"),)))
    seen = [(record.levelname, record.getMessage().splitlines()[0]) for record in caplog.records]
    assert seen == [
        ("INFO", "saved /c in 1.50 s"),
        ("WARNING", "no rights"),
        ("INFO", "the run has ended: failed"),
        ("ERROR", failure("F0.0", "died").message),
    ]
