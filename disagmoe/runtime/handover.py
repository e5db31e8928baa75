"""Since when each payload that a worker waited for had been on its way.

A wait has two causes: the senders were not as far, or the network was not. Which part is which only
the senders know, so each notes when it handed a payload over, and tells its receivers at the end of
the program, in one message per pair of workers and step.
"""

from collections.abc import Iterable, Iterator, Sequence

import torch

from disagmoe.runtime.context import Context
from disagmoe.runtime.moments import HostMoments, Moment, Moments
from disagmoe.schedule.gateways import peers
from disagmoe.schedule.ir import Op, Program, Transfer, TransferKey
from disagmoe.schedule.layout import Channel
from disagmoe.transport.base import TransportChannel, Work

_SENDS = (Op.POST_SEND, Op.EXCHANGE)
_RECEIVES = (Op.POST_RECV, Op.EXCHANGE)


class Handovers:
    """One worker's; a program at a time."""

    def __init__(self, context: Context, moments: Moments | None = None) -> None:
        """`moments` are the host's if not given."""
        self._context = context
        self._moments: Moments = moments or HostMoments()
        self._me = str(context.worker)
        self.clock_offset_s = 0.0
        """What this worker's clock needs to show the first worker's time."""
        self._sends: dict[str, list[TransferKey]] = {}
        self._receives: dict[str, list[TransferKey]] = {}
        self._noted: dict[TransferKey, Moment] = {}
        self._arriving: dict[str, torch.Tensor] = {}
        self._work: Work | None = None

    def begin(self, program: Program) -> None:
        """Begin a program of this worker."""
        self._noted.clear()
        self._sends = self._by_peer(_keys(program, _SENDS), sends=True)
        self._receives = self._by_peer(_keys(program, _RECEIVES), sends=False)

    def note(self, key: TransferKey) -> None:
        """This worker hands over the payload of `key` now, or its counts, which go ahead."""
        self._noted.setdefault(key, self._moments.now())

    def tell(self, world: TransportChannel) -> None:
        """Begin to tell the receivers, and to hear from the senders. All workers call it at the
        same place of their posts on `world`. Waits until the device has computed what was sent,
        which the sums that follow would wait for at once."""
        leaving = {peer: self._vector(keys) for peer, keys in self._sends.items()}
        self._arriving = {
            peer: torch.empty(len(keys), dtype=torch.float64)
            for peer, keys in self._receives.items()
        }
        self._work = world.post(leaving, self._arriving)

    def hear(self) -> dict[TransferKey, float]:
        """Return when each payload that this worker received had been handed over by all of its
        senders, by this worker's clock."""
        assert self._work is not None
        self._work.wait()
        self._work = None
        heard: dict[TransferKey, float] = {}
        for peer, keys in self._receives.items():
            for key, time_s in zip(keys, self._arriving[peer].tolist(), strict=True):
                here_s = time_s - self.clock_offset_s
                heard[key] = max(heard.get(key, here_s), here_s)
        return heard

    def _vector(self, keys: Sequence[TransferKey]) -> torch.Tensor:
        times_s = [self._moments.time_s(self._noted[key]) + self.clock_offset_s for key in keys]
        return torch.tensor(times_s, dtype=torch.float64)

    def _by_peer(self, keys: Iterable[TransferKey], *, sends: bool) -> dict[str, list[TransferKey]]:
        """What goes to or comes from each worker: channel by channel, in the order of the channel,
        which both ends know."""
        by_channel: dict[Channel, list[TransferKey]] = {}
        for key in keys:
            by_channel.setdefault(key.channel, []).append(key)
        layout, me = self._context.layout, self._context.worker
        by_peer: dict[str, list[TransferKey]] = {}
        for channel in sorted(by_channel):
            for role in peers(layout, channel, me, sends=sends):
                by_peer.setdefault(str(layout.process(role)), []).extend(by_channel[channel])
        return by_peer


def _keys(program: Program, ops: tuple[Op, ...]) -> Iterator[TransferKey]:
    for instruction in program.instructions:
        if isinstance(instruction, Transfer) and instruction.op in ops:
            yield instruction.key
