"""Device tensors over a transport that carries CPU tensors only: copied through host memory.

Correct everywhere and slow: each message waits for the device twice.
"""

from collections.abc import Mapping, Sequence

import torch

from disagmoe.transport.base import ChannelSpec, Transport, TransportChannel, Work


class StagedWork:
    """A transfer under way, and what to copy to the device after it."""

    def __init__(self, work: Work, arriving: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self._work = work
        self._arriving = tuple(arriving)

    def wait(self) -> None:
        """See Work.wait; then copy what has come to its device."""
        self._work.wait()
        for target, host in self._arriving:
            target.copy_(host)
        self._arriving = ()


class StagedChannel:
    """One channel; tensors on other devices than `device` pass through untouched."""

    def __init__(self, channel: TransportChannel, device: torch.device) -> None:
        self._channel = channel
        self._device_type = device.type

    def post(
        self,
        sends: Mapping[str, torch.Tensor],
        recvs: Mapping[str, torch.Tensor],
        label: str = "",
    ) -> Work:
        """See TransportChannel.post; blocks until the device has computed what is sent."""
        leaving = {peer: self._copy(tensor, filled=True) for peer, tensor in sends.items()}
        arriving = {peer: self._copy(tensor, filled=False) for peer, tensor in recvs.items()}
        work = self._channel.post(leaving, arriving, label)
        pairs = [(recvs[peer], host) for peer, host in arriving.items() if host is not recvs[peer]]
        return StagedWork(work, pairs)

    def _copy(self, tensor: torch.Tensor, *, filled: bool) -> torch.Tensor:
        # strides stay, so that the channel beneath refuses what it must
        if tensor.device.type != self._device_type:
            return tensor
        host = torch.empty_like(tensor, device="cpu", memory_format=torch.preserve_format)
        return host.copy_(tensor) if filled else host


class StagedTransport:
    """`inner` for a worker that computes on `device`."""

    def __init__(self, inner: Transport, device: torch.device) -> None:
        self._inner = inner
        self._device = device

    @property
    def launches(self) -> None:
        """See Transport.launches."""
        return None

    def open(self, specs: Sequence[ChannelSpec]) -> dict[str, TransportChannel]:
        """See Transport.open."""
        opened = self._inner.open(specs)
        return {name: StagedChannel(channel, self._device) for name, channel in opened.items()}

    def close(self) -> None:
        """See Transport.close."""
        self._inner.close()
