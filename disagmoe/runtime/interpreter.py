"""Walks a program: compute to the sides' ops, transfers to channels, in the order that is written.

Nothing is decided here: whatever may happen has been proved by the verifier. Compute and sends are
this thread's, receives are the inbox's; they meet at the `wait` of a receive.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import assert_never

from disagmoe.errors import TransportError, WorkerError
from disagmoe.runtime.awaited import awaited
from disagmoe.runtime.channels import WORLD
from disagmoe.runtime.clock import Stopwatch
from disagmoe.runtime.context import Context
from disagmoe.runtime.devicetime import Flights
from disagmoe.runtime.handover import Handovers
from disagmoe.runtime.inbox import Arrivals, Inbox, Ports, Receiver, hop_until_now, moved
from disagmoe.runtime.launching import LaunchingInbox
from disagmoe.runtime.moments import HostMoments, Moments
from disagmoe.runtime.side import SideOps
from disagmoe.runtime.slots import SlotTable
from disagmoe.runtime.trace import Hop
from disagmoe.runtime.wire import Incoming, Outgoing
from disagmoe.schedule.accounting import Kind
from disagmoe.schedule.ir import (
    STEP_OPS,
    Compute,
    Free,
    Instruction,
    Op,
    Program,
    StepEnd,
    Transfer,
    TransferKey,
    owner,
)
from disagmoe.schedule.layout import Side
from disagmoe.transport.base import Launches, TransportChannel, Work


class Interpreter:
    """Executes programs of one worker."""

    def __init__(
        self,
        context: Context,
        sides: Mapping[Side, SideOps],
        slots: SlotTable,
        channels: Mapping[str, TransportChannel],
        stopwatch: Stopwatch,
        launches: Launches | None = None,
        moments: Moments | None = None,
    ) -> None:
        """`launches` where one thread posts everything (see Transport.launches); `moments` is the
        worker's clock, the host's if not given."""
        self._context = context
        self._sides = sides
        self._slots = slots
        self._stopwatch = stopwatch
        self._channels = channels
        self._ports = Ports(context, channels)
        moments = moments or HostMoments()
        self.handovers = Handovers(context, moments)
        self._hops: list[Hop] = []
        self._flights = None if launches is None else Flights(launches, moments)
        parts = context, sides, slots, self._ports
        self._inbox: Receiver = (
            Inbox(*parts, self._hops)
            if launches is None or self._flights is None
            else LaunchingInbox(*parts, launches, self._flights, stopwatch)
        )
        self._works: dict[TransferKey, list[Work]] = {}
        self._arrivals: Arrivals = {}
        self._posted_s: dict[TransferKey, float] = {}
        self.position = 0
        self._current: Instruction | None = None
        self.probe: Callable[[Instruction], None] | None = None
        """Called before each instruction; for drills that make something go wrong there."""
        self.instruction = ""
        self.progressed_at_s = time.monotonic()

    def run(self, program: Program, step_end: Mapping[Op, Callable[[], None]]) -> None:
        """Execute `program` once; `step_end` does what ends a training step.

        Raises WorkerError that names worker and instruction, with the failure as its cause.
        """
        self.handovers.begin(program)
        self._arrivals = self._inbox.start(program)
        for self.position, instruction in enumerate(program.instructions):
            self._current, self.instruction = instruction, str(instruction)
            self.progressed_at_s = time.monotonic()
            with self._explained():
                if self.probe is not None:
                    self.probe(instruction)
                self._execute(instruction, step_end)
        self._current = None
        self._stopwatch.switch(Kind.IDLE)
        if len(self._slots) or self._works or self._arrivals:
            raise WorkerError(f"{self._context.worker}: the program left slots or transfers behind")
        with self._explained():
            if not step_end:  # an evaluation, whose program ends with its ops
                self.handovers.tell(self._channels[WORLD])
            self._settle(self.handovers.hear())

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Say where it was when something fails, and leave nothing waiting."""
        try:
            yield
            self._inbox.check()
        except Exception as failed:  # noqa: BLE001 - raised again with its place
            error = self._cause(failed)
            reason = (
                f"{self._context.worker} failed at instruction {self.position} "
                f"'{self.instruction}': {type(error).__name__}: {error}"
            )
            self._slots.fail(reason)
            self._inbox.close()
            raise WorkerError(reason) from error

    def _cause(self, failed: Exception) -> Exception:
        """A transfer that failed while the device went on leaves garbage, on which something else
        fails first."""
        try:
            self._inbox.check()
        except TransportError as error:
            return error
        return failed

    def _settle(self, sent_s: Mapping[TransferKey, float]) -> None:
        """Tell waiting for the network from waiting for those who send."""
        self._stopwatch.settle(sent_s)
        if self._flights is not None:
            self._hops += self._flights.land(wanted=self._stopwatch.traces)
        if not self._stopwatch.traces:
            return
        sent = {(str(key.channel), moved(key)): time_s for key, time_s in sent_s.items()}
        for place, hop in enumerate(self._hops):
            began_s = min(sent.get((hop.channel, hop.label), hop.start_s), hop.end_s)
            if not hop.sends and began_s > hop.start_s:
                self._hops[place] = replace(hop, start_s=began_s)

    def awaits(self) -> tuple[str, ...]:
        """Workers that this one waits for now. For any thread."""
        return awaited(self._current, self._stopwatch.kind, self._context)

    def take_hops(self) -> tuple[Hop, ...]:
        """Return the ends of transfers since the last call."""
        hops = tuple(self._hops)
        self._hops.clear()
        return hops

    def take_rows(self) -> dict[str, int]:
        """Return how many rows this worker has sent towards experts since the last call, by hop."""
        rows = dict(self._ports.rows)
        self._ports.rows.clear()
        return rows

    def close(self) -> None:
        """End the threads that receive."""
        self._inbox.close()

    def _execute(self, instruction: Instruction, step_end: Mapping[Op, Callable[[], None]]) -> None:
        match instruction:
            case Compute():
                # a sum of a few numbers is computed nowhere: its time is waiting for the others
                waits = instruction.op is Op.REDUCE_COUNTS
                self._stopwatch.switch(Kind.IDLE if waits else Kind.COMPUTE, self.instruction)
                side = owner(instruction, self._context.layout).side
                self._sides[side].compute(instruction)
            case Transfer():
                self._transfer(instruction)
            case Free():
                if isinstance(freed := self._slots.free(instruction.slot), Incoming):
                    self._inbox.release(freed)
            case StepEnd():
                if instruction.op is STEP_OPS[0]:
                    self.handovers.tell(self._channels[WORLD])
                step_end[instruction.op]()
            case _:
                assert_never(instruction)

    def _transfer(self, transfer: Transfer) -> None:
        key = transfer.key
        match transfer.op:
            case Op.SEND_COUNTS:
                self._stopwatch.switch(Kind.SEND, self.instruction)
                self.handovers.note(key)
                outgoing = self._slots.get(key.sent, Outgoing)
                self._works.setdefault(key, []).append(self._ports.post_counts(key, outgoing, {}))
            case Op.POST_SEND:
                self._stopwatch.switch(Kind.SEND, self.instruction)
                self.handovers.note(key)
                outgoing = self._slots.get(key.sent, Outgoing)
                work = self._ports.post_payload(key, outgoing.buffers, {})
                self._works.setdefault(key, []).append(work)
                self._posted_s[key] = time.perf_counter()
            case Op.EXCHANGE_COUNTS | Op.EXCHANGE:
                self.handovers.note(key)
                self._inbox.post(transfer)
            case Op.WAIT:
                self._wait(key)
            case _:
                self._inbox.post(transfer)

    def _wait(self, key: TransferKey) -> None:
        arrival = self._arrivals.pop(key, None)
        if arrival is None:
            self._stopwatch.switch(Kind.SEND, self.instruction)
            works = self._works.pop(key)
            for work in works:
                work.wait()
            nbytes, posted_s = self._slots.get(key.sent, Outgoing).nbytes, self._posted_s.pop(key)
            if self._flights is not None:
                self._flights.add(key, True, nbytes, works[-1])
            else:  # when a send was complete is not known, only that it was by now
                self._hops.append(hop_until_now(key, True, nbytes, posted_s))
        else:
            self._stopwatch.switch(Kind.RECV_WAIT, self.instruction, awaited=key)
            self._slots.put(key.received, arrival.result())
