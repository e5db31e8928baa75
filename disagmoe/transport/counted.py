"""A channel that counts what leaves this worker on it."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from disagmoe.transport.base import TransportChannel, Work


@dataclass(frozen=True, slots=True)
class Traffic:
    """What has been sent."""

    messages: int
    nbytes: int


class CountedChannel:
    """`channel` as worker `me` sees it; everything passes through."""

    def __init__(self, channel: TransportChannel, me: str) -> None:
        self._channel = channel
        self._me = me
        self._messages = 0
        self._nbytes = 0

    def post(
        self,
        sends: Mapping[str, torch.Tensor],
        recvs: Mapping[str, torch.Tensor],
        label: str = "",
    ) -> Work:
        """See TransportChannel.post. A part for oneself is no message, nor is one without
        elements."""
        for peer, tensor in sends.items():
            if peer != self._me and tensor.numel():
                self._messages += 1
                self._nbytes += tensor.nbytes
        return self._channel.post(sends, recvs, label)

    def take(self) -> Traffic:
        """Return what was sent since the last call. Not while another thread posts."""
        traffic = Traffic(self._messages, self._nbytes)
        self._messages = self._nbytes = 0
        return traffic
