"""A task in a process of its own."""

import os
import time
from functools import partial

import pytest

from disagmoe.calibrate.child import in_child
from disagmoe.errors import WorkerError

pytestmark = pytest.mark.gloo


def test_a_task_answers_from_another_process() -> None:
    assert in_child(os.getpid, 60.0, late="late", died="died") != os.getpid()


def test_a_task_that_takes_too_long() -> None:
    with pytest.raises(WorkerError, match=r"^no answer yet$"):
        in_child(partial(time.sleep, 60.0), 0.5, late="no answer yet", died="died")


def test_a_process_that_dies() -> None:
    with pytest.raises(WorkerError, match=r"^it has died$"):
        in_child(partial(os._exit, 3), 60.0, late="late", died="it has died")
