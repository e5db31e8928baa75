"""An NCCL transport over the stand-in, for one worker in a thread or a process of its own."""

from collections.abc import Sequence
from dataclasses import dataclass

from disagmoe.transport.base import ChannelSpec, TransportChannel
from disagmoe.transport.gloo import GlooTransport
from disagmoe.transport.nccl import NcclTransport
from disagmoe.transport.nccl_library import Nccl
from disagmoe.transport.rendezvous import connect
from tests.nccl.standin import StandinDevice, StandinNccl, StandinStreams

LOOPBACK = "127.0.0.1"


class StandinTransport(NcclTransport):
    """A transport that takes its device along when it goes, and says when all edges are warm."""

    standin: StandinDevice

    def open(self, specs: Sequence[ChannelSpec]) -> dict[str, TransportChannel]:
        self.standin.say("opening")
        opened = super().open(specs)
        self.standin.say("opened")
        return opened

    def close(self) -> None:
        super().close()
        self.standin.close()


@dataclass(frozen=True)
class Standin:
    """Makes transports; a value that can go to another process."""

    address: tuple[str, int]
    """Of the stand-in's server."""
    jitter_s: float = 0.0

    def __call__(
        self,
        worker: str,
        store: tuple[str, int],
        epoch: int,
        timeout_s: float,
        start_s: float = 30.0,
    ) -> NcclTransport:
        """The transport of `worker`."""
        device = StandinDevice(f"{worker} e{epoch}", self.address, self.jitter_s)
        host = GlooTransport(
            worker,
            connect(*store, start_s),
            epoch=epoch,
            host=LOOPBACK,
            timeout_s=timeout_s,
            start_timeout_s=start_s,
        )
        transport = StandinTransport(
            worker,
            connect(*store, start_s),
            host,
            StandinStreams(device),
            Nccl(StandinNccl(device)),
            epoch=epoch,
            timeout_s=timeout_s,
            start_timeout_s=start_s,
        )
        transport.standin = device
        return transport
