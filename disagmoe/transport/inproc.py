"""Channels between threads of one process, with NCCL's rendezvous semantics and with faults.

A send completes only when its receive is posted, and the other way round; parts between two workers
meet strictly in the order of posting on each channel. A program that needs buffering therefore
stands still here, and the timeout says who waits for whom.
"""

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

import torch

from disagmoe.errors import TransportError
from disagmoe.transport.base import ChannelSpec, TransportChannel
from disagmoe.transport.faults import Delay, Drop, Fail, Fault, Kill
from disagmoe.transport.parts import check_parts, copy_self_part, describe, place, same_size


@dataclass(slots=True, eq=False)
class _Part:
    """One end of one message."""

    channel: str
    me: str
    peer: str
    verb: str
    post: int
    tensor: torch.Tensor
    label: str
    lost: bool
    done: bool = False
    error: str | None = None

    def __str__(self) -> str:
        way = "send to" if self.verb == "send" else "receive from"
        named = f" ({self.label})" if self.label else ""
        return (
            f"{self.me} waits for {self.peer} on channel {self.channel}, post {self.post}{named}: "
            f"{way} {self.peer} of {describe(self.tensor)}"
        )


@dataclass(slots=True)
class _Pair:
    """Ends that have not met, of one source and one target on one channel; one side is empty."""

    sends: deque[_Part] = field(default_factory=deque)
    recvs: deque[_Part] = field(default_factory=deque)


class InprocHub:
    """The meeting point of all workers of one process, and the place where faults are made."""

    def __init__(self, worker_names: Sequence[str], timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._changed = threading.Condition()
        self._transports = {name: InprocTransport(self, name) for name in worker_names}
        self._opened: dict[tuple[str, str], ChannelSpec] = {}
        self._pairs: dict[tuple[str, str, str], _Pair] = {}
        self._waiting: list[_Part] = []
        self._gone: dict[str, str] = {}
        self._faults: dict[tuple[str, str, int], Fault] = {}

    def transport(self, name: str) -> "InprocTransport":
        """Return the transport of worker `name`."""
        return self._transports[name]

    def inject(self, worker: str, channel: str, post: int, fault: Fault) -> None:
        """Let `fault` happen when `worker` makes its post number `post`, from 0, on `channel`."""
        self._faults[worker, channel, post] = fault

    def fail(self, worker: str, reason: str) -> None:
        """Declare `worker` dead: it can post no more, and all that wait for it are told at once."""
        self._leave(worker, f"{worker} has died: {reason}")

    def _leave(self, worker: str, reason: str) -> None:
        with self._changed:
            self._gone.setdefault(worker, reason)
            self._changed.notify_all()

    def _meet(self, me: str, spec: ChannelSpec) -> None:
        with self._changed:
            self._opened[me, spec.name] = spec
            self._changed.notify_all()
            deadline = time.monotonic() + self.timeout_s
            while missing := [m for m in spec.members if (m, spec.name) not in self._opened]:
                if gone := [self._gone[m] for m in missing if m in self._gone]:
                    raise TransportError(f"channel {spec.name}: {me} opens it, but {gone[0]}")
                if not self._changed.wait(deadline - time.monotonic()):
                    raise TransportError(
                        f"channel {spec.name}: {me} has waited {self.timeout_s:g} s for "
                        f"{', '.join(missing)} to open it"
                    )
            for member in spec.members:
                if (theirs := self._opened[member, spec.name]) != spec:
                    raise TransportError(
                        f"channel {spec.name}: {me} opens it as {spec}, {member} as {theirs}"
                    )

    def _enter(self, me: str, channel: str, post: int, label: str) -> bool:
        """Apply the fault of this post, if any; return whether its messages get lost."""
        where = place(channel, me, post, label)
        match self._faults.get((me, channel, post)):
            case None:
                lost = False
            case Drop():
                lost = True
            case Delay(delay_s):
                time.sleep(delay_s)
                lost = False
            case Fail(reason):
                raise TransportError(f"{where}: {reason}")
            case Kill(reason):
                self.fail(me, reason)
                lost = False
            case unknown:
                assert_never(unknown)
        if me in self._gone:
            raise TransportError(f"{where}: {self._gone[me]}")
        return lost

    def _submit(self, parts: Sequence[_Part]) -> None:
        with self._changed:
            for part in parts:
                self._add(part)
            self._changed.notify_all()

    def _add(self, part: _Part) -> None:
        sending = part.verb == "send"
        ends = (part.me, part.peer) if sending else (part.peer, part.me)
        pair = self._pairs.setdefault((part.channel, *ends), _Pair())
        mine, theirs = (pair.sends, pair.recvs) if sending else (pair.recvs, pair.sends)
        if theirs and part.peer not in self._gone:
            send, recv = (part, theirs.popleft()) if sending else (theirs.popleft(), part)
            _complete(send, recv)
        else:
            mine.append(part)

    def _wait(self, part: _Part, deadline: float) -> None:
        def settled() -> bool:
            return part.done or part.error is not None or bool(self._gone.keys() & ends)

        ends = {part.me, part.peer}
        with self._changed:
            self._waiting.append(part)
            if not self._changed.wait_for(settled, deadline - time.monotonic()):
                # The worker stays listed as waiting, so that the reports of its peers are whole.
                raise TransportError(self._stalled(part))
            self._waiting.remove(part)
            if part.error is not None:
                raise TransportError(part.error)
            if not part.done:
                gone = self._gone.get(part.peer) or self._gone[part.me]
                raise TransportError(
                    f"{place(part.channel, part.me, part.post, part.label)}: {gone}"
                )

    def _stalled(self, part: _Part) -> str:
        lines = [f"no progress within {self.timeout_s:g} s", str(part)]
        lines += [str(other) for other in self._waiting if other is not part]
        return "\n  ".join(lines)


class InprocWork:
    """A grouped transfer under way."""

    def __init__(self, hub: InprocHub, parts: list[_Part]) -> None:
        self._hub = hub
        self._parts = parts

    def wait(self) -> None:
        """See Work.wait; the error of a timeout lists every worker that waits."""
        deadline = time.monotonic() + self._hub.timeout_s
        for part in self._parts:
            self._hub._wait(part, deadline)


class InprocChannel:
    """One channel as one thread sees it."""

    def __init__(self, hub: InprocHub, spec: ChannelSpec, me: str) -> None:
        self._hub = hub
        self._spec = spec
        self._me = me
        self._posts = 0

    def post(
        self,
        sends: Mapping[str, torch.Tensor],
        recvs: Mapping[str, torch.Tensor],
        label: str = "",
    ) -> InprocWork:
        """See TransportChannel.post."""
        check_parts(self._spec, self._me, sends, recvs)
        lost = self._hub._enter(self._me, self._spec.name, self._posts, label)
        copy_self_part(self._me, sends, recvs)
        parts = [
            _Part(self._spec.name, self._me, peer, verb, self._posts, tensor, label, lost)
            for verb, tensors in (("send", sends), ("receive", recvs))
            for peer, tensor in tensors.items()
            if peer != self._me and tensor.numel()
        ]
        self._posts += 1
        self._hub._submit(parts)
        return InprocWork(self._hub, parts)


class InprocTransport:
    """The inproc backend of one worker; get it from InprocHub.transport."""

    def __init__(self, hub: InprocHub, me: str) -> None:
        self._hub = hub
        self._me = me
        self._names: set[str] = set()

    @property
    def launches(self) -> None:
        """See Transport.launches."""
        return None

    def open(self, specs: Sequence[ChannelSpec]) -> dict[str, TransportChannel]:
        """See Transport.open."""
        opened: dict[str, TransportChannel] = {}
        for spec in specs:
            if self._me in spec.members:
                if spec.name in self._names:
                    raise TransportError(f"channel {spec.name} is open already on {self._me}")
                self._names.add(spec.name)
                self._hub._meet(self._me, spec)
                opened[spec.name] = InprocChannel(self._hub, spec, self._me)
        return opened

    def close(self) -> None:
        """See Transport.close."""
        self._hub._leave(self._me, f"{self._me} has closed its transport")


def _complete(send: _Part, recv: _Part) -> None:
    """Move the data of two ends that have met, or mark both with their mismatch."""
    if not same_size(send.tensor, recv.tensor):
        text = (
            f"channel {send.channel}: {send.me} sends {describe(send.tensor)} in its post "
            f"{send.post}, {recv.me} expects {describe(recv.tensor)} in its post {recv.post}"
        )
        send.error = recv.error = text
    elif not (send.lost or recv.lost):
        recv.tensor.view(-1).copy_(send.tensor.view(-1))
        send.done = recv.done = True
