"""Receives run ahead on a thread per channel, and refuse what was not announced for them."""

import re
import threading
import time

import pytest
import torch

from disagmoe.errors import ScheduleError, WorkerError
from disagmoe.runtime import inbox
from disagmoe.runtime.interpreter import Interpreter
from disagmoe.runtime.step import WorkerRuntime
from disagmoe.runtime.wire import header
from disagmoe.schedule.ir import Slot, SlotKind
from disagmoe.schedule.layout import Side, Worker
from disagmoe.transport.faults import Delay
from tests.unit.runtime.tiny import (
    assert_equals_reference,
    batch_of,
    reference,
    step,
    threads,
    tiny,
)


@pytest.mark.parametrize(
    ("forged", "announced"),
    [
        (lambda layer, mb, rows, pairs: (layer, mb + 1, rows, pairs), "L0 m1 with"),
        (lambda layer, mb, rows, pairs: (layer + 1, mb, rows, pairs), "L1 m0 with"),
        (lambda layer, mb, rows, pairs: (layer, mb, -1, pairs), "L0 m0 with -1 rows"),
    ],
)
@pytest.mark.parametrize("schedule", ["af_pipe", "ep_1f1b"])
def test_a_wrong_announcement_names_what_came_and_what_was_expected(
    monkeypatch: pytest.MonkeyPatch, forged: object, announced: str, schedule: str
) -> None:
    monkeypatch.setattr(inbox, "header", lambda *values: header(*forged(*values)))  # type: ignore[operator]
    config = tiny(
        parallel__schedule=schedule,
        parallel__attention_workers=2,
        parallel__expert_workers=2,
    )
    text = rf"TransportError: A0>F0\.act L0 m0: A0\.\d announced {announced}.* expected L0 m0"
    with (
        threads(config, [batch_of(config)]) as run,
        pytest.raises(WorkerError, match=text),
    ):
        run.each(lambda runtime: runtime.run_step(0))


def test_counts_that_lie_are_a_transport_error_with_both_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        inbox, "header", lambda layer, mb, rows, pairs: header(layer, mb, rows + 1, pairs)
    )
    config = tiny()
    with (
        threads(config, [batch_of(config)]) as run,
        pytest.raises(WorkerError, match=r"A0\.0 sends .*, F0\.0 expects "),
    ):
        run.each(lambda runtime: runtime.run_step(0))


def test_payloads_arrive_while_the_program_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transfer of the second micro-batch ends while the experts still have the first one."""
    config = tiny(model__layers=1, parallel__in_flight=2)
    arrived = threading.Event()
    with threads(config, [batch_of(config)]) as run:
        experts = run.workers[Worker.parse("F0.0")]
        side = experts._experts
        assert side is not None
        original, arrive = side._forward, experts.interpreter._inbox._arrive

        def watched_arrival(key: object, *rest: object) -> object:
            incoming = arrive(key, *rest)  # type: ignore[arg-type]
            if str(key) == "A0>F0.act L0 m1":
                arrived.set()
            return incoming

        def slow_forward(layer: int, mb: int) -> None:
            if mb == 0:
                assert arrived.wait(10), "the inbox does not run ahead"
            original(layer, mb)

        monkeypatch.setattr(side, "_forward", slow_forward)
        monkeypatch.setattr(experts.interpreter._inbox, "_arrive", watched_arrival)
        assert_equals_reference(step(run), reference(config, batch_of(config)))


@pytest.mark.parametrize("worker", ["A0.0", "F0.0"])
@pytest.mark.parametrize("channel", ["A0>F0.act.counts", "A0>F0.act", "F0>A0.act", "A0>F0.grad"])
def test_lateness_changes_no_value(worker: str, channel: str) -> None:
    config = tiny(parallel__in_flight=2, parallel__attention_workers=2)
    with threads(config, [batch_of(config)]) as run:
        run.hub.inject(worker, channel, 1, Delay(0.1))
        assert_equals_reference(step(run), reference(config, batch_of(config)))


def test_threads_end_when_the_worker_leaves() -> None:
    config = tiny()
    with threads(config, [batch_of(config)]) as run:
        run.each(lambda runtime: runtime.run_step(0))
        names = {t.name for t in threading.enumerate() if ">" in t.name}
        assert {name.rpartition("_")[0] for name in names} == {
            "A0> posts",
            "A0> waits",
            "F0> posts",
            "F0> waits",
        }
    deadline = time.monotonic() + 5
    while any(">" in t.name for t in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_program_that_leaves_something_behind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny()
    with threads(config, [batch_of(config)]) as run:
        interpreter: Interpreter = run.workers[Worker.parse("A0.0")].interpreter
        monkeypatch.setattr(interpreter._slots, "free", lambda slot: None)
        with pytest.raises(WorkerError, match=r"A0\.0: the program left slots or transfers behind"):
            run.each(lambda runtime: runtime.run_step(0))


def test_reading_a_slot_that_was_never_written_names_it() -> None:
    config = tiny()
    with threads(config, [batch_of(config)]) as run:
        runtime: WorkerRuntime = run.workers[Worker.parse("A0.0")]
        side = runtime._attention
        assert side is not None
        slot = Slot(Side.ATTENTION, SlotKind.DROWS, 0, 0)
        with pytest.raises(ScheduleError, match=re.escape(f"'{slot}' holds NoneType")):
            runtime._slots.get(slot, torch.Tensor)
