"""What a transport is: channels between workers, on which tensors travel in a fixed order.

Rules that every backend keeps, the strictest (NCCL's) being the common ground:
no tags, only order; both ends know every size beforehand; a post never blocks on its peer's
compute; a sent tensor must not be touched before its `wait`; one thread per
channel posts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from disagmoe.transport.streams import Event


@dataclass(frozen=True, slots=True)
class ChannelSpec:
    """A channel to open: its name and its members in rank order. Members are worker names.

    A one-way channel has disjoint `sources` and `targets`, or the same members as both where rows
    stay among them; so has a mesh, on which they add up what all of them have.
    """

    name: str
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    on_host: bool = False
    """Whether its tensors are in host memory whatever workers compute on: counts, clocks, flags."""
    mesh: bool = False
    """Whether it carries sums. A worker does one at a time, between its transfers of rows, so that
    a backend may let meshes share what channels of rows have apart to go on side by side."""

    @property
    def members(self) -> tuple[str, ...]:
        """All members once, sources first; their positions are their ranks on the channel."""
        return tuple(dict.fromkeys(self.sources + self.targets))


class Work(Protocol):
    """A posted transfer."""

    def wait(self) -> None:
        """Block until all its parts are complete. Raises TransportError on failure or timeout."""


class TransportChannel(Protocol):
    """One open channel as one worker sees it."""

    def post(
        self,
        sends: Mapping[str, torch.Tensor],
        recvs: Mapping[str, torch.Tensor],
        label: str = "",
    ) -> Work:
        """Start one grouped transfer: contiguous tensors to and from the named members.

        `label` says what moves, such as `L3 m0`, the same at both ends; errors repeat it.

        All members post the same transfers in the same order; sizes agree at both ends. Tensors of
        zero elements are legal and cost no message. A part for oneself is a local copy.

        Raises TransportError for a part that this channel cannot carry (see `parts.check_parts`),
        and on a closed channel.
        """


class Launches(Protocol):
    """What the receives of a worker need, all of whose posts come from one thread in the order of
    its program, and whose transfers go on behind its back."""

    def take(self, nbytes: int) -> torch.Tensor:
        """Return an uninitialised uint8 buffer to receive into, which need not wait for what the
        device computes now."""

    def give_back(self, buffer: torch.Tensor) -> None:
        """Let a buffer of `take` be used again after what the device has been given so far."""

    def check(self) -> None:
        """Raise TransportError if a transfer of this worker has failed by now."""

    def mark(self) -> Event:
        """Return the point after what the device has been given to compute so far."""

    def flown(self, work: Work) -> tuple[Event, Event] | None:
        """Return when a transfer that was waited for could begin, and when it was complete; None
        for one without messages."""


class Transport(Protocol):
    """A backend, as one worker holds it."""

    @property
    def launches(self) -> Launches | None:
        """None where several threads may post, each on channels of its own."""

    def open(self, specs: Sequence[ChannelSpec]) -> dict[str, TransportChannel]:
        """Open the channels that this worker is a member of, in the given order, and warm each.

        All workers call it with the same list. Raises TransportError when a member does not come
        within the timeout, naming it, or comes with another idea of the channel.
        """

    def close(self) -> None:
        """Release everything; safe to call twice. Peers that still wait for this worker fail."""
