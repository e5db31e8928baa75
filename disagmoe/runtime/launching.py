"""Receives of one worker, posted by its program's thread in the program's order.

For transports with one launch thread (NCCL): every transfer takes its place in one order for the
whole worker, which is that of its program and has been verified with all transfers in one line. Row
counts come over host memory, so the device is asked for nothing; while the program waits for them,
the device works off what it has been given, and only what it waits beyond that is counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from disagmoe.runtime.clock import Stopwatch
from disagmoe.runtime.context import Context
from disagmoe.runtime.devicetime import Flights
from disagmoe.runtime.inbox import Arrivals, Ports, check_counts
from disagmoe.runtime.side import Counts, SideOps
from disagmoe.runtime.slots import SlotTable
from disagmoe.runtime.wire import HEADER_LENGTH, Incoming, Outgoing
from disagmoe.schedule.accounting import Kind
from disagmoe.schedule.gateways import peers
from disagmoe.schedule.ir import Op, Program, Transfer, TransferKey
from disagmoe.schedule.layout import Side
from disagmoe.transport.base import Launches, Work


@dataclass(slots=True)
class _Announced:
    """Counts under way."""

    headers: Mapping[str, torch.Tensor]
    work: Work


@dataclass(slots=True)
class _Receive:
    """A payload under way; what the program takes it from."""

    key: TransferKey
    flights: Flights
    work: Work | None = None
    incoming: Incoming | None = None

    def result(self) -> Incoming:
        """Return the payload, which the device may read from now on."""
        assert self.work is not None
        assert self.incoming is not None
        self.work.wait()
        nbytes = sum(len(buffer) for buffer in self.incoming.buffers.values())
        self.flights.add(self.key, False, nbytes, self.work)
        return self.incoming


class LaunchingInbox:
    """Posts what a program receives where the program says so."""

    def __init__(
        self,
        context: Context,
        sides: Mapping[Side, SideOps],
        slots: SlotTable,
        ports: Ports,
        launches: Launches,
        flights: Flights,
        stopwatch: Stopwatch,
    ) -> None:
        """`flights` is told of every receive, `stopwatch` of waits for row counts."""
        self._context = context
        self._sides = sides
        self._slots = slots
        self._ports = ports
        self._launches = launches
        self._flights = flights
        self._stopwatch = stopwatch
        self._announced: dict[TransferKey, _Announced] = {}
        self._receives: dict[TransferKey, _Receive] = {}

    def start(self, program: Program) -> Arrivals:
        """Return what `program` will receive; nothing is posted yet."""
        self._announced.clear()
        self._receives = {
            instruction.key: _Receive(instruction.key, self._flights)
            for instruction in program.instructions
            if isinstance(instruction, Transfer) and instruction.op in (Op.POST_RECV, Op.EXCHANGE)
        }
        return dict(self._receives)

    def post(self, transfer: Transfer) -> None:
        """Post a receive, or both directions of an exchange."""
        key = transfer.key
        match transfer.op:
            case Op.RECV_COUNTS:
                self._announce(key, None)
            case Op.EXCHANGE_COUNTS:
                self._announce(key, self._slots.get(key.sent, Outgoing))
            case Op.POST_RECV:
                self._receive(transfer, {})
            case Op.EXCHANGE:
                self._receive(transfer, self._slots.get(key.sent, Outgoing).buffers)
            case _:
                raise AssertionError(f"{transfer} receives nothing")

    def release(self, incoming: Incoming) -> None:
        """The program has freed `incoming`: its buffers may be received into again."""
        for buffer in incoming.buffers.values():
            if len(buffer):
                self._launches.give_back(buffer)

    def check(self) -> None:
        """Raise TransportError if a transfer has failed by now."""
        self._launches.check()

    def close(self) -> None:
        """Nothing waits."""

    def _announce(self, key: TransferKey, outgoing: Outgoing | None) -> None:
        layout, me = self._context.layout, self._context.worker
        members = peers(layout, key.channel, me, sends=False)
        headers = {str(peer): torch.empty(HEADER_LENGTH, dtype=torch.int64) for peer in members}
        work = self._ports.post_counts(key, outgoing, headers)
        self._announced[key] = _Announced(headers, work)

    def _counts(self, transfer: Transfer) -> Counts | None:
        key = transfer.key
        announced = self._announced.pop(key, None)
        if announced is None:
            return None
        # what the device has been given before may be done before they are there
        self._stopwatch.switch(Kind.RECV_WAIT, str(transfer), awaited=key)
        announced.work.wait()
        return check_counts(key, announced.headers, str(self._context.worker))

    def _receive(self, transfer: Transfer, sends: Mapping[str, torch.Tensor]) -> None:
        key, counts = transfer.key, self._counts(transfer)
        expected = list(self._sides[key.channel.target.side].expected(key, counts))
        buffers, views = {}, {}
        for peer, message in expected:
            nbytes = message.nbytes
            buffers[peer] = (
                self._launches.take(nbytes) if nbytes else message.allocate(self._context.device)
            )
            views[peer] = message.views(buffers[peer])
        receive = self._receives[key]
        receive.incoming = Incoming(buffers, views, reused=True)
        receive.work = self._ports.post_payload(key, sends, buffers)
