"""Channels over gloo: one private process group each, order without tags, waits without polling.

See README.md for why gloo is used this way and in no other.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, cast

import torch
from torch.distributed import PrefixStore, ProcessGroupGloo, Store  # type: ignore[attr-defined]
from torch.distributed import Work as GlooHandle

from disagmoe.errors import TransportError
from disagmoe.transport.base import ChannelSpec, TransportChannel
from disagmoe.transport.parts import check_parts, copy_self_part, describe, place
from disagmoe.transport.rendezvous import declare, meet

_TAG = 0  # NCCL has no tags, so no backend may lean on them.
_CANARY_BYTES = 16


class _Group(Protocol):
    """What is used of ProcessGroupGloo, whose stubs lack it."""

    def send(self, tensors: list[torch.Tensor], rank: int, tag: int, /) -> GlooHandle: ...
    def recv(self, tensors: list[torch.Tensor], rank: int, tag: int, /) -> GlooHandle: ...


@dataclass(frozen=True, slots=True)
class _Part:
    """One message to or from one peer. The tensor is held until the message is complete."""

    peer: str
    verb: str
    tensor: torch.Tensor
    handle: GlooHandle


class GlooWork:
    """A grouped transfer under way."""

    def __init__(
        self, where: str, parts: list[_Part], timeout_s: float, canary: torch.Tensor
    ) -> None:
        self._where = where
        self._parts = parts
        self._timeout_s = timeout_s
        self._canary = canary

    def wait(self) -> None:
        """Block until all parts are complete. Raises TransportError that names the peer.

        A failure is final: gloo closes the connection on which a wait has timed out.
        """
        deadline = time.monotonic() + self._timeout_s
        while self._parts:
            part = self._parts[0]
            left = timedelta(seconds=max(deadline - time.monotonic(), 1e-3))
            # gloo raises RuntimeError for a closed connection and for a timeout alike.
            try:
                part.handle.wait(left)
            except RuntimeError as error:
                raise TransportError(self._explain(part, str(error))) from error
            if part.verb == "receive" and _holds(part.tensor, self._canary):
                raise TransportError(
                    f"{self._where}: {part.peer} sent less than the {describe(part.tensor)} that "
                    "were expected"
                )
            self._parts.pop(0)

    def _explain(self, part: _Part, reason: str) -> str:
        preposition = "to" if part.verb == "send" else "from"
        action = f"{part.verb} of {describe(part.tensor)} {preposition} {part.peer}"
        lowered = reason.lower()
        if "closed by peer" in lowered or "reset by peer" in lowered or "broken pipe" in lowered:
            return f"{self._where}: {part.peer} has closed the connection during the {action}"
        if "timeout" in lowered or "timed out" in lowered:
            return f"{self._where}: {action} not complete within {self._timeout_s:g} s"
        return f"{self._where}: {action} failed: {reason}"


class GlooChannel:
    """One channel; rank on its private group is the position among the members."""

    def __init__(
        self,
        spec: ChannelSpec,
        me: str,
        group: _Group,
        timeout_s: float,
        canary: torch.Tensor,
    ) -> None:
        self._spec = spec
        self._me = me
        self._group: _Group | None = group
        self._ranks = {member: rank for rank, member in enumerate(spec.members)}
        self._timeout_s = timeout_s
        self._canary = canary
        self._posts = 0

    def post(
        self,
        sends: Mapping[str, torch.Tensor],
        recvs: Mapping[str, torch.Tensor],
        label: str = "",
    ) -> GlooWork:
        """See TransportChannel.post; tensors must be on the CPU."""
        where = place(self._spec.name, self._me, self._posts, label)
        group = self._group
        if group is None:
            raise TransportError(f"{where}: the channel is closed")
        check_parts(self._spec, self._me, sends, recvs)
        self._posts += 1
        copy_self_part(self._me, sends, recvs)
        parts = []
        # Receives first: a message that finds its buffer waiting needs no second wake-up.
        for peer, tensor in self._messages(recvs):
            _place(tensor, self._canary)
            parts.append(self._start("receive", group.recv, peer, tensor, where))
        for peer, tensor in self._messages(sends):
            parts.append(self._start("send", group.send, peer, tensor, where))
        return GlooWork(where, parts, self._timeout_s, self._canary)

    def _messages(self, tensors: Mapping[str, torch.Tensor]) -> list[tuple[str, torch.Tensor]]:
        messages = [(peer, t) for peer, t in tensors.items() if peer != self._me and t.numel()]
        for peer, tensor in messages:
            if tensor.device.type != "cpu":
                raise TransportError(
                    f"channel {self._spec.name}: the part of {self._me} and {peer} is on "
                    f"{tensor.device}; gloo carries CPU tensors only"
                )
        return messages

    def _start(
        self,
        verb: str,
        start: Callable[[list[torch.Tensor], int, int], GlooHandle],
        peer: str,
        tensor: torch.Tensor,
        where: str,
    ) -> _Part:
        try:
            handle = start([tensor], self._ranks[peer], _TAG)
        except RuntimeError as error:
            raise TransportError(f"{where}: {verb} with {peer} cannot start: {error}") from error
        return _Part(peer, verb, tensor, handle)

    def warm(self) -> None:
        """Send one element over every edge, in an order that all members share."""
        for source in self._spec.sources:
            for target in self._spec.targets:
                message = torch.zeros(1)
                if source == target or self._me not in (source, target):
                    continue
                if self._me == source:
                    self.post({target: message}, {}).wait()
                else:
                    self.post({}, {source: message}).wait()
        self._posts = 0

    def close(self) -> None:
        """Leave the group, which closes its connections."""
        self._group = None


class GlooTransport:
    """The gloo backend of worker `me`.

    `store` is the run's store (rendezvous.connect), `epoch` counts restarts of the run's workers.
    Connections are bound to `host`, an address of this machine that the peers reach (loopback keeps
    them on this machine), or to the network device `interface` where that is given. Opening must
    succeed within `start_timeout_s`, every wait within `timeout_s`.
    """

    def __init__(
        self,
        me: str,
        store: Store,
        *,
        epoch: int,
        host: str,
        timeout_s: float,
        start_timeout_s: float,
        interface: str | None = None,
    ) -> None:
        self._me = me
        self._store = PrefixStore(f"e{epoch}", store)
        self._timeout_s = timeout_s
        self._start_timeout_s = start_timeout_s
        # gloo completes a receive in silence when the message is shorter than the buffer. A random
        # tail in the buffer shows it, if 16 bytes or more are missing.
        self._canary = torch.frombuffer(bytearray(os.urandom(_CANARY_BYTES)), dtype=torch.uint8)
        self._channels: dict[str, GlooChannel] = {}
        try:
            if interface is not None:
                self._device = ProcessGroupGloo.create_device(interface=interface)
            else:
                self._device = ProcessGroupGloo.create_device(hostname=host)
        except RuntimeError as error:
            raise TransportError(
                f"worker {me}: gloo cannot bind to {interface or host}: {error}"
            ) from error

    @property
    def launches(self) -> None:
        """See Transport.launches."""
        return None

    def open(self, specs: Sequence[ChannelSpec]) -> dict[str, TransportChannel]:
        """See Transport.open."""
        declare(self._store, self._me, "gloo")
        opened: dict[str, TransportChannel] = {}
        for spec in specs:
            if self._me in spec.members:
                if spec.name in self._channels:
                    raise TransportError(f"channel {spec.name} is open already on {self._me}")
                self._channels[spec.name] = self._open(spec)
                opened[spec.name] = self._channels[spec.name]
        return opened

    def _open(self, spec: ChannelSpec) -> GlooChannel:
        meet(self._store, spec, self._me, self._start_timeout_s)
        store = PrefixStore(spec.name, self._store)
        # The stubs of torch call this class and its fields by other names than the library does.
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [self._device]
        options._timeout = timedelta(seconds=self._start_timeout_s)
        options._threads = 1  # for collectives, which are not used
        rank = spec.members.index(self._me)
        try:
            group = ProcessGroupGloo(store, rank, len(spec.members), options)
        except RuntimeError as error:
            raise TransportError(
                f"channel {spec.name}: {self._me} cannot connect to all of "
                f"{', '.join(spec.members)}: {error}"
            ) from error
        channel = GlooChannel(spec, self._me, cast(_Group, group), self._timeout_s, self._canary)
        channel.warm()
        return channel

    def close(self) -> None:
        """See Transport.close."""
        for channel in self._channels.values():
            channel.close()


def _tail(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)[-_CANARY_BYTES:]


def _place(tensor: torch.Tensor, canary: torch.Tensor) -> None:
    # Below this size the tail could equal the canary by chance.
    if tensor.nbytes >= _CANARY_BYTES:
        _tail(tensor).copy_(canary)


def _holds(tensor: torch.Tensor, canary: torch.Tensor) -> bool:
    return tensor.nbytes >= _CANARY_BYTES and torch.equal(_tail(tensor), canary)
