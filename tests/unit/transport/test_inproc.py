"""What only the inproc transport does: rendezvous, exact size checks, faults, deadlock reports."""

import time

import pytest
import torch

from disagmoe.errors import TransportError
from disagmoe.transport.base import ChannelSpec
from disagmoe.transport.faults import Delay, Drop, Fail, Kill
from disagmoe.transport.inproc import InprocHub
from tests.contract.transport_cases import Member, error_of, run_threads

A, F = "A0.0", "F0.0"
FORWARD = ChannelSpec("A0>F0.act", (A,), (F,))
BACKWARD = ChannelSpec("F0>A0.grad", (F,), (A,))
SPECS = (FORWARD, BACKWARD)
HASTY_S = 0.3


def send(member: Member, rows: torch.Tensor) -> None:
    member.post(FORWARD, {F: rows}).wait()


def receive(member: Member, rows: torch.Tensor) -> list[float]:
    member.post(FORWARD, {}, {A: rows}).wait()
    return rows.tolist()


@pytest.mark.parametrize(
    ("expected", "wanted"),
    [
        (torch.zeros(3), "12 bytes (3 x float32)"),
        (torch.zeros(2, dtype=torch.int32), "8 bytes (2 x int32)"),
    ],
)
def test_a_mismatch_is_an_error_at_both_ends(expected: torch.Tensor, wanted: str) -> None:
    def case(member: Member) -> str:
        if member.me == A:
            return error_of(lambda: send(member, torch.ones(2)))
        return error_of(lambda: receive(member, expected))

    text = (
        "channel A0>F0.act: A0.0 sends 8 bytes (2 x float32) in its post 0, "
        f"F0.0 expects {wanted} in its post 0"
    )
    assert run_threads(InprocHub((A, F), 5).transport, case, SPECS) == {A: text, F: text}


def test_a_send_is_complete_only_when_its_receive_is_posted() -> None:
    events = []

    def case(member: Member) -> None:
        if member.me == F:
            time.sleep(0.1)
            events.append("receive is posted")
            receive(member, torch.zeros(1))
        else:
            send(member, torch.ones(1))
            events.append("send is complete")

    run_threads(InprocHub((A, F), 5).transport, case, SPECS)
    assert events == ["receive is posted", "send is complete"]


def test_a_deadlock_is_reported_with_all_that_wait() -> None:
    """Both send first and wait: legal with buffers, a deadlock by rendezvous."""

    def case(member: Member) -> str:
        spec, peer = (FORWARD, F) if member.me == A else (BACKWARD, A)
        member.post(spec, {}, {})
        return error_of(member.post(spec, {peer: torch.ones(4)}).wait)

    results = run_threads(InprocHub((A, F), HASTY_S).transport, case, SPECS)
    lines = {
        A: "A0.0 waits for F0.0 on channel A0>F0.act, post 1: send to F0.0 of 16 bytes "
        "(4 x float32)",
        F: "F0.0 waits for A0.0 on channel F0>A0.grad, post 1: send to A0.0 of 16 bytes "
        "(4 x float32)",
    }
    assert results == {
        A: f"no progress within 0.3 s\n  {lines[A]}\n  {lines[F]}",
        F: f"no progress within 0.3 s\n  {lines[F]}\n  {lines[A]}",
    }


def test_an_injected_failure_hits_one_post_of_one_worker() -> None:
    hub = InprocHub((A, F), HASTY_S)
    hub.inject(A, FORWARD.name, 1, Fail("cable pulled"))

    def case(member: Member) -> tuple[object, str]:
        if member.me == A:
            return send(member, torch.ones(1)), error_of(lambda: send(member, torch.ones(1)))
        return receive(member, torch.zeros(1)), error_of(lambda: receive(member, torch.zeros(1)))

    results = run_threads(hub.transport, case, SPECS)
    assert results[A] == (None, "channel A0>F0.act, worker A0.0, post 1: cable pulled")
    assert results[F][0] == [1.0]
    assert "F0.0 waits for A0.0 on channel A0>F0.act, post 1" in results[F][1]


def test_a_delay_slows_the_transfer_and_changes_nothing() -> None:
    hub = InprocHub((A, F), 5)
    hub.inject(A, FORWARD.name, 0, Delay(0.2))

    def case(member: Member) -> object:
        if member.me == A:
            return send(member, torch.ones(1))
        return receive(member, torch.zeros(1))

    begin = time.monotonic()
    assert run_threads(hub.transport, case, SPECS) == {A: None, F: [1.0]}
    assert time.monotonic() - begin >= 0.2


def test_a_dropped_message_never_arrives_and_does_not_shift_the_next() -> None:
    hub = InprocHub((A, F), HASTY_S)
    hub.inject(A, FORWARD.name, 0, Drop())

    def case(member: Member) -> object:
        if member.me == A:
            lost = member.post(FORWARD, {F: torch.full((1,), 1.0)})
            send(member, torch.full((1,), 2.0))
            return error_of(lost.wait)
        lost = member.post(FORWARD, {}, {A: torch.zeros(1)})
        return receive(member, torch.zeros(1)), error_of(lost.wait)

    results = run_threads(hub.transport, case, SPECS)
    assert "A0.0 waits for F0.0 on channel A0>F0.act, post 0" in results[A]
    assert results[F][0] == [2.0]
    assert "F0.0 waits for A0.0 on channel A0>F0.act, post 0" in results[F][1]


def test_a_killed_worker_is_named_to_its_peers_at_once() -> None:
    hub = InprocHub((A, F), 30)
    hub.inject(A, FORWARD.name, 0, Kill("out of memory"))

    def case(member: Member) -> object:
        begin = time.monotonic()
        if member.me == A:
            return error_of(lambda: send(member, torch.ones(1)))
        message = error_of(lambda: receive(member, torch.zeros(1)))
        assert time.monotonic() - begin < 5
        return message, error_of(lambda: receive(member, torch.zeros(1)))

    text = "channel A0>F0.act, worker {}, post {}: A0.0 has died: out of memory"
    assert run_threads(hub.transport, case, SPECS) == {
        A: text.format(A, 0),
        F: (text.format(F, 0), text.format(F, 1)),
    }


def test_a_worker_that_dies_before_opening_is_named() -> None:
    hub = InprocHub((A, F), 30)
    hub.fail(F, "no such device")
    with pytest.raises(TransportError, match=r"A0>F0\.act: A0\.0 opens it, but F0\.0 has died: no"):
        hub.transport(A).open(SPECS)
