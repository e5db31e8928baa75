"""Whether transfers and products of one device go on at once, and whether posts stop the host."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import torch

from disagmoe.bench.gpujobs import TIMEOUT_S, Job
from disagmoe.runtime.channels import channel_name, channel_specs
from disagmoe.runtime.moments import moments_of
from disagmoe.schedule.layout import Channel
from disagmoe.transport.base import TransportChannel, Work
from disagmoe.units import MIB

_CHANNEL = channel_name(Channel.parse("A0>F0.act"), 0)
_TURNS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Seconds on the device of the worker that receives."""

    transfer_s: float
    compute_s: float
    both_s: float
    """Of as many transfers and products, begun at once."""
    host_waits: str
    """What torch says where posts or waits have stopped the host; '' where none has."""

    @property
    def hidden_share(self) -> float:
        """Share of the shorter of both that went on behind the longer."""
        shorter_s = min(self.transfer_s, self.compute_s)
        return (self.transfer_s + self.compute_s - self.both_s) / shorter_s


@dataclass(frozen=True, slots=True)
class MeasureOverlap:
    """The job; a value that can go to another process."""

    nbytes: int = 128 * MIB
    """Of a message."""
    width: int = 4096
    """Of the matrices."""

    def __call__(self, job: Job) -> Overlap:
        """Measure with the worker at the other end."""
        device = torch.device(job.device)
        with closing(job.make(str(job.worker), job.store, 0, TIMEOUT_S)) as transport:
            channels = transport.open(channel_specs(job.program.spec))
            moments = moments_of(device, transport.launches, TIMEOUT_S)
            buffer = torch.zeros(self.nbytes, dtype=torch.uint8, device=device)
            square = torch.randn(self.width, self.width, device=device).to(torch.bfloat16)
            product = torch.empty_like(square)
            told: list[str] = []

            def posts() -> list[Work]:
                one = channels[_CHANNEL]
                return [_post(one, str(job.worker), buffer, f"m{turn}") for turn in range(_TURNS)]

            def products() -> None:
                for _ in range(_TURNS):
                    torch.mm(square, square, out=product)

            def alone() -> None:
                for work in posts():
                    work.wait()

            def together() -> None:
                works = posts()
                products()
                for work in works:
                    work.wait()

            def timed(what: Callable[[], None]) -> float:
                began = moments.now()
                moments.time_s(began)  # nothing is queued
                with _strict(device, told):
                    what()
                ended = moments.now()
                return moments.time_s(ended) - moments.time_s(began)

            rounds = (alone, products, together)
            for what in rounds:  # connections, workspaces and clocks warm up
                timed(what)
            told.clear()
            transfer_s, compute_s, both_s = map(timed, rounds)
        return Overlap(
            transfer_s=transfer_s,
            compute_s=compute_s,
            both_s=both_s,
            host_waits="; ".join(dict.fromkeys(told)),
        )


def _post(channel: TransportChannel, me: str, buffer: torch.Tensor, label: str) -> Work:
    sends = {"F0.0": buffer} if me == "A0.0" else {}
    recvs = {"A0.0": buffer} if me == "F0.0" else {}
    return channel.post(sends, recvs, label)


@contextmanager
def _strict(device: torch.device, told: list[str]) -> Iterator[None]:
    """Let torch raise where the host would wait for the device, and keep what it says."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    except RuntimeError as error:
        told.append(str(error))
    finally:
        torch.cuda.set_sync_debug_mode("default")
