"""What every transport must do, as one function per case that each member runs.

A case gets its Member and returns plain values, so that it runs in a thread or in another process.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from disagmoe.errors import TransportError
from disagmoe.transport.base import ChannelSpec, Transport, TransportChannel, Work
from disagmoe.transport.collective import (
    all_gather,
    reduce_scatter,
    reduce_to_all_small,
    sum_in_rank_order,
)

ATTENTION, EXPERTS = ("A0.0", "A0.1"), ("F0.0", "F0.1", "F0.2")
WORKERS = ATTENTION + EXPERTS
FORWARD = ChannelSpec("A0>F0.act", ATTENTION, EXPERTS)
BACKWARD = ChannelSpec("F0>A0.grad", EXPERTS, ATTENTION)
MESH = ChannelSpec("experts", EXPERTS, EXPERTS, mesh=True)
SPECS = (FORWARD, BACKWARD, MESH)
DTYPES = (
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.int32,
    torch.int64,
    torch.uint8,
)


@dataclass(frozen=True)
class Member:
    """One worker in a case."""

    me: str
    transport: Transport
    channels: dict[str, TransportChannel]

    def post(
        self, spec: ChannelSpec, sends: dict[str, Any] | None = None, recvs: Any = None
    ) -> Work:
        return self.channels[spec.name].post(sends or {}, recvs or {})


Case = Callable[[Member], Any]


def run_threads(
    make: Callable[[str], Transport], case: Case, specs: tuple[ChannelSpec, ...] = SPECS
) -> dict[str, Any]:
    """Run `case` on one thread per member; return results, an exception being a result too."""
    names = list(dict.fromkeys(name for spec in specs for name in spec.members))
    results: dict[str, Any] = {}
    done = threading.Barrier(len(names))

    def body(name: str) -> None:
        try:
            transport = make(name)
            try:
                results[name] = case(Member(name, transport, transport.open(specs)))
                done.wait(30)
            finally:
                transport.close()
        except Exception as error:  # noqa: BLE001 - handed to the test
            done.abort()
            results.setdefault(name, error)

    threads = [threading.Thread(target=body, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return results


def value(source: str, target: str, salt: int = 0) -> int:
    """A small number that tells all edges apart."""
    return 1 + WORKERS.index(source) * 8 + WORKERS.index(target) + 50 * salt


def exchange(member: Member, spec: ChannelSpec, rows: Callable[[str, str], int], salt: int) -> Any:
    """One grouped transfer of `rows(source, target)` rows of 3 per edge; return what came."""
    me = member.me
    sends = {
        t: torch.full((rows(me, t), 3), float(value(me, t, salt)))
        for t in (spec.targets if me in spec.sources else ())
    }
    recvs = {
        s: torch.full((rows(s, me), 3), -1.0) for s in (spec.sources if me in spec.targets else ())
    }
    member.post(spec, sends, recvs).wait()
    return {source: tensor.tolist() for source, tensor in recvs.items()}


def grouped(member: Member) -> Any:
    """M-to-N with unequal sizes, both ways."""
    sizes = {edge: 1 + i for i, edge in enumerate((a, f) for a in ATTENTION for f in EXPERTS)}
    forward = exchange(member, FORWARD, lambda s, t: sizes[s, t], 0)
    return forward | exchange(member, BACKWARD, lambda s, t: sizes[t, s], 1)


def zero_rows(member: Member) -> Any:
    """A0.1 has nothing for F0.1, F0.2 gets nothing at all."""
    return exchange(
        member, FORWARD, lambda s, t: 0 if t == "F0.2" or (s, t) == ("A0.1", "F0.1") else 2, 0
    )


def mesh_with_self(member: Member) -> Any:
    """All to all, oneself included."""
    return exchange(member, MESH, lambda s, t: 2, 0) if member.me in MESH.members else {}


def order(member: Member) -> Any:
    """Twenty posts of several sizes before the first wait; they arrive in order."""
    works, came = [], []
    for i in range(20):
        sends, recvs = {}, {}
        if member.me in FORWARD.sources:
            sends = {t: torch.full((i % 3 + 1,), 100 * value(member.me, t) + i) for t in EXPERTS}
        else:
            recvs = {s: torch.zeros(i % 3 + 1, dtype=torch.int64) for s in ATTENTION}
        works.append(member.post(FORWARD, sends, recvs))
        came.append(recvs)
    for work in works:
        work.wait()
        work.wait()
    return [{s: t.tolist() for s, t in recvs.items()} for recvs in came]


def dtypes(member: Member) -> Any:
    """Every type travels, with an odd number of elements."""
    came = {}
    for dtype in DTYPES:
        if member.me in FORWARD.sources:
            sends = {t: torch.arange(7).to(dtype) + value(member.me, t) for t in EXPERTS}
            member.post(FORWARD, sends).wait()
        else:
            recvs = {s: torch.zeros(7, dtype=dtype) for s in ATTENTION}
            member.post(FORWARD, {}, recvs).wait()
            for source, tensor in recvs.items():
                came[str(dtype), source] = (str(tensor.dtype), tensor.tolist())
    return came


LARGE = 9 * 2**20 // 4


def both_ways(member: Member, count: int = LARGE) -> Any:
    """All post `count` elements each way before any waits, sends first; nobody stands still. Where
    launches have one order, experts receive first."""
    me = member.me
    out, back = (FORWARD, BACKWARD) if me in ATTENTION else (BACKWARD, FORWARD)
    recvs = {s: torch.zeros(count) for s in back.sources}
    one_order = member.transport.launches is not None and me in EXPERTS
    received = member.post(back, {}, recvs) if one_order else None
    sent = member.post(out, {t: torch.full((count,), float(value(me, t))) for t in out.targets})
    received = received or member.post(back, {}, recvs)
    sent.wait()
    received.wait()
    return {s: (t[0].item(), t[-1].item(), t.double().mean().item()) for s, t in recvs.items()}


def late_receiver(member: Member) -> Any:
    """Posts of A0.0 return although F0.0 comes more than a second later; waiting is what waits."""
    begin = time.monotonic()
    if member.me == "A0.0":
        work = member.post(FORWARD, {"F0.0": torch.ones(LARGE)})
        posted_s = time.monotonic() - begin
        work.wait()
        return posted_s, time.monotonic() - begin
    if member.me == "F0.0":
        time.sleep(1.5)
        member.post(FORWARD, {}, {"A0.0": torch.zeros(LARGE)}).wait()
    return None


def values_of(member: Member) -> list[torch.Tensor]:
    """Numbers whose sum depends on the order of addition; shapes do not divide by three."""
    generator = torch.Generator().manual_seed(EXPERTS.index(member.me))
    return [
        torch.randn(shape, generator=generator) * 10**k
        for k, shape in enumerate(((7,), (3, 5), (0,), (1,), (2, 2, 11)))
    ]


def reductions(member: Member) -> Any:
    """The collectives over the mesh, in several chunk sizes."""
    if member.me not in EXPERTS:
        return None
    channel = member.channels[MESH.name]
    summed = []
    for chunk_bytes in (4, 40, 2**20):
        tensors = values_of(member)
        sum_in_rank_order(channel, member.me, EXPERTS, tensors, chunk_bytes=chunk_bytes)
        summed.append([t.tolist() for t in tensors])
    flat = torch.cat([t.view(-1) for t in values_of(member)])
    shard = reduce_scatter(channel, member.me, EXPERTS, flat)
    gathered = torch.zeros_like(flat)
    all_gather(channel, member.me, EXPERTS, shard, gathered)
    vector = flat[:4].double()
    total = reduce_to_all_small(channel, member.me, EXPERTS, vector)
    return summed, shard.tolist(), gathered.tolist(), total.tolist()


def error_of(action: Callable[[], Any]) -> str:
    """The message of the TransportError that `action` raises."""
    try:
        action()
    except TransportError as error:
        return str(error)
    raise AssertionError("no TransportError")


def refusals(member: Member) -> Any:
    """Posts that no backend accepts."""
    rows = torch.ones(2, 3)
    if member.me == "A0.0":
        return [
            error_of(lambda: member.post(FORWARD, {}, {"F0.0": rows})),
            error_of(lambda: member.post(FORWARD, {"A0.1": rows})),
            error_of(lambda: member.post(FORWARD, {"F0.0": rows.T})),
            error_of(lambda: member.transport.open([FORWARD])),
        ]
    if member.me == "F0.0":
        return [
            error_of(lambda: member.post(MESH, {"F0.0": rows})),
            error_of(lambda: member.post(MESH, {"F0.0": rows}, {"F0.0": rows.double()})),
        ]
    return []


def silent_peer(member: Member) -> Any:
    """F0.1 never posts; both who need it say so."""
    if member.me == "A0.1":
        return error_of(member.post(FORWARD, {"F0.1": torch.ones(LARGE)}).wait)
    if member.me == "F0.2":
        return error_of(member.post(MESH, {}, {"F0.1": torch.ones(5)}).wait)
    return None


def closing_peer(member: Member) -> Any:
    """F0.1 closes while A0.1 waits for it, and cannot post afterwards."""
    if member.me == "F0.1":
        time.sleep(0.2)
        member.transport.close()
        member.transport.close()
        return error_of(lambda: member.post(FORWARD, {}, {"A0.1": torch.ones(5)}))
    if member.me == "A0.1":
        begin = time.monotonic()
        work = member.post(BACKWARD, {}, {"F0.1": torch.ones(5)})
        return error_of(work.wait), time.monotonic() - begin
    return None
