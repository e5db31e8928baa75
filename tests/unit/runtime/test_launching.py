"""Receives posted by the program's thread: what it waits for, and what is charged for that."""

from typing import Any

import pytest
import torch

from disagmoe.errors import TransportError
from disagmoe.runtime.clock import Stopwatch
from disagmoe.runtime.devicetime import Flights
from disagmoe.runtime.launching import LaunchingInbox
from disagmoe.runtime.moments import HostMoments
from disagmoe.runtime.slots import SlotTable
from disagmoe.runtime.wire import header
from disagmoe.schedule.accounting import Kind
from disagmoe.schedule.ir import Op, Program, Transfer
from disagmoe.schedule.layout import Channel, Group, Side
from tests.unit.runtime import tiny

CHANNEL = Channel.parse("A0>F0.act")


class Network:
    """Stands for Ports, Launches and the side: a wait takes 2 s."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.announced: dict[str, torch.Tensor] = {}
        self.counts: Any = None
        self.rows = 3

    def post_counts(self, key: Any, outgoing: Any, headers: dict[str, torch.Tensor]) -> "Network":
        self.announced = headers
        return self

    def post_payload(self, key: Any, sends: Any, recvs: Any) -> "Network":
        return self

    def wait(self) -> None:
        self.now_s += 2.0
        for values in self.announced.values():
            values.copy_(header(0, 1, self.rows, 4))

    def expected(self, key: Any, counts: Any) -> list[Any]:
        self.counts = counts
        return []

    def flown(self, work: Any) -> None:
        return None


def inbox(network: Network) -> tuple[LaunchingInbox, Stopwatch]:
    stopwatch = Stopwatch(lambda: network.now_s)
    context = tiny.context_of(tiny.tiny(), "F0.0")
    fake: Any = network
    flights = Flights(fake, HostMoments())
    return (
        LaunchingInbox(
            context, {Side.EXPERT: fake}, SlotTable(1.0), fake, fake, flights, stopwatch
        ),
        stopwatch,
    )


def test_what_is_waited_for_counts_is_time_on_the_network_since_they_were_sent() -> None:
    network = Network()
    receives, stopwatch = inbox(network)
    announce, payload = (Transfer(op, CHANNEL, 0, 1) for op in (Op.RECV_COUNTS, Op.POST_RECV))
    arrivals = receives.start(Program(Group(Side.EXPERT, 0), (announce, payload)))
    stopwatch.switch(Kind.COMPUTE)
    network.now_s = 5.0
    receives.post(announce)
    receives.post(payload)
    stopwatch.switch(Kind.COMPUTE)
    assert network.counts == {"A0.0": (3, 4)}
    assert arrivals[payload.key].result().buffers == {}
    stopwatch.settle({payload.key: 5.5})
    assert stopwatch.take() == dict.fromkeys(Kind, 0.0) | {
        Kind.COMPUTE: 5.0 + 2.0,  # the payload comes 2 s after it is asked for, too
        Kind.IDLE: 0.5,
        Kind.RECV_WAIT: 1.5,
    }


def test_nothing_is_charged_where_sizes_are_known() -> None:
    network = Network()
    receives, stopwatch = inbox(network)
    payload = Transfer(Op.POST_RECV, CHANNEL, 0, 1)
    receives.start(Program(Group(Side.EXPERT, 0), (payload,)))
    stopwatch.switch(Kind.COMPUTE)
    receives.post(payload)
    assert (network.counts, stopwatch.kind) == (None, Kind.COMPUTE)


def test_counts_of_another_transfer_are_told() -> None:
    network = Network()
    receives, _ = inbox(network)
    announce, payload = (Transfer(op, CHANNEL, 1, 1) for op in (Op.RECV_COUNTS, Op.POST_RECV))
    receives.start(Program(Group(Side.EXPERT, 0), (announce, payload)))
    receives.post(announce)
    with pytest.raises(TransportError, match=r"A0\.0 announced L0 m1 .*; F0\.0 expected L1 m1"):
        receives.post(payload)
