"""Walks a program: compute to the side's ops, transfers to channels, in the order that is written.

One thread, no decisions: whatever may happen has been proved by the verifier.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import assert_never

import torch

from disagmoe.errors import TransportError, WorkerError
from disagmoe.runtime.channels import counts_name
from disagmoe.runtime.clock import Kind, Stopwatch
from disagmoe.runtime.context import Context
from disagmoe.runtime.side import Counts, SideOps
from disagmoe.runtime.slots import SlotTable
from disagmoe.runtime.wire import HEADER_LENGTH, Incoming, Outgoing, header
from disagmoe.schedule.ir import (
    Compute,
    Free,
    Instruction,
    Op,
    Program,
    StepEnd,
    Transfer,
    TransferKey,
)
from disagmoe.transport.base import TransportChannel, Work


@dataclass(slots=True)
class Traffic:
    """What left this worker on one channel."""

    messages: int = 0
    nbytes: int = 0


class Interpreter:
    """Executes programs of one worker."""

    def __init__(
        self,
        context: Context,
        side: SideOps,
        slots: SlotTable,
        channels: Mapping[str, TransportChannel],
        stopwatch: Stopwatch,
    ) -> None:
        self._context = context
        self._side = side
        self._slots = slots
        self._channels = channels
        self._stopwatch = stopwatch
        self._works: dict[TransferKey, list[Work]] = {}
        self._counts: dict[TransferKey, Counts] = {}
        self._arriving: dict[TransferKey, Incoming] = {}
        self.traffic: dict[str, Traffic] = {}
        self.position = 0
        self.instruction = ""
        self.progressed_at_s = time.monotonic()

    def run(self, program: Program, step_end: Mapping[Op, Callable[[], None]]) -> None:
        """Execute `program` once; `step_end` does what ends a training step.

        Raises WorkerError that names worker and instruction, with the failure as its cause.
        """
        for self.position, instruction in enumerate(program.instructions):
            self.instruction = str(instruction)
            self.progressed_at_s = time.monotonic()
            try:
                self._execute(instruction, step_end)
            except Exception as error:
                raise WorkerError(
                    f"{self._context.worker} failed at instruction {self.position} "
                    f"'{instruction}': {type(error).__name__}: {error}"
                ) from error
        self._stopwatch.switch(Kind.IDLE)
        if len(self._slots) or self._works:
            raise WorkerError(f"{self._context.worker}: the program left slots or transfers behind")

    def _execute(self, instruction: Instruction, step_end: Mapping[Op, Callable[[], None]]) -> None:
        match instruction:
            case Compute():
                self._stopwatch.switch(Kind.COMPUTE)
                self._side.compute(instruction)
            case Transfer():
                self._transfer(instruction)
            case Free():
                self._slots.free(instruction.slot)
            case StepEnd():
                step_end[instruction.op]()
            case _:
                assert_never(instruction)

    def _transfer(self, transfer: Transfer) -> None:
        key = transfer.key
        match transfer.op:
            case Op.SEND_COUNTS:
                self._stopwatch.switch(Kind.SEND)
                self._send_counts(key)
            case Op.RECV_COUNTS:
                self._stopwatch.switch(Kind.RECV_WAIT)
                self._counts[key] = self._recv_counts(key)
            case Op.POST_SEND:
                self._stopwatch.switch(Kind.SEND)
                self._post_send(key)
            case Op.POST_RECV:
                self._stopwatch.switch(Kind.SEND)
                self._post_recv(key)
            case _:
                self._wait(key)

    def _send_counts(self, key: TransferKey) -> None:
        outgoing = self._slots.get(key.slot, Outgoing)
        headers = {
            peer: header(key.layer, key.mb, *counts) for peer, counts in outgoing.counts.items()
        }
        work = self._channels[counts_name(key.channel)].post(headers, {})
        self._works.setdefault(key, []).append(work)

    def _recv_counts(self, key: TransferKey) -> Counts:
        layout = self._context.layout
        peers = [str(worker) for worker in layout.members(key.channel.source)]
        headers = {peer: torch.empty(HEADER_LENGTH, dtype=torch.int64) for peer in peers}
        self._channels[counts_name(key.channel)].post({}, headers).wait()
        counts: Counts = {}
        for peer, values in headers.items():
            layer, mb, rows, pairs = values.tolist()
            if (layer, mb) != (key.layer, key.mb) or rows < 0 or pairs < 0:
                raise TransportError(
                    f"{key}: {peer} announced L{layer} m{mb} with {rows} rows and {pairs} pairs; "
                    f"{self._context.worker} expected L{key.layer} m{key.mb}"
                )
            counts[peer] = (rows, pairs)
        return counts

    def _post_send(self, key: TransferKey) -> None:
        outgoing = self._slots.get(key.slot, Outgoing)
        work = self._channels[str(key.channel)].post(outgoing.buffers, {})
        self._works.setdefault(key, []).append(work)
        traffic = self.traffic.setdefault(str(key.channel), Traffic())
        for buffer in outgoing.buffers.values():
            traffic.messages += 1 if len(buffer) else 0
            traffic.nbytes += len(buffer)

    def _post_recv(self, key: TransferKey) -> None:
        messages = self._side.expected(key, self._counts.pop(key, None))
        incoming = Incoming.allocate(messages, self._context.device)
        work = self._channels[str(key.channel)].post({}, incoming.buffers)
        self._works.setdefault(key, []).append(work)
        self._arriving[key] = incoming

    def _wait(self, key: TransferKey) -> None:
        arriving = self._arriving.pop(key, None)
        self._stopwatch.switch(Kind.SEND if arriving is None else Kind.RECV_WAIT)
        for work in self._works.pop(key):
            work.wait()
        if arriving is not None:
            self._slots.put(key.slot, arriving)
