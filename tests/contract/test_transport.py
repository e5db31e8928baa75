"""One suite for all transports, with a stand-in where they need a GPU: every case on inproc, plain
and staged, on gloo between threads and between processes, and on NCCL's."""

import itertools
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any

import pytest
import torch

from disagmoe.errors import TransportError
from disagmoe.transport.base import ChannelSpec, Transport
from disagmoe.transport.collective import shard_bounds
from disagmoe.transport.gloo import GlooTransport
from disagmoe.transport.inproc import InprocHub
from disagmoe.transport.rendezvous import StoreServer, connect
from disagmoe.transport.staged import StagedTransport
from tests.contract import transport_cases as cases
from tests.contract.transport_cases import (
    ATTENTION,
    BACKWARD,
    EXPERTS,
    FORWARD,
    MESH,
    WORKERS,
    Case,
    Member,
    value,
)
from tests.nccl.rig import Standin
from tests.nccl.server import StandinServer

LOOPBACK = "127.0.0.1"
PATIENT_S, HASTY_S = 30.0, 0.8
Run = Callable[..., dict[str, Any]]


def gloo_transport(name: str, port: int, epoch: int, timeout_s: float) -> GlooTransport:
    store = connect(LOOPBACK, port, PATIENT_S)
    return GlooTransport(
        name, store, epoch=epoch, host=LOOPBACK, timeout_s=timeout_s, start_timeout_s=PATIENT_S
    )


def run_member(name: str, port: int, epoch: int, timeout_s: float, case: Case) -> Any:
    """Run one member of `case` in this process."""
    torch.set_num_threads(1)
    transport = gloo_transport(name, port, epoch, timeout_s)
    try:
        result = case(Member(name, transport, transport.open(cases.SPECS)))
        store = connect(LOOPBACK, port, PATIENT_S)
        store.set(f"done/{epoch}/{name}", "")
        store.wait([f"done/{epoch}/{other}" for other in WORKERS])
        return result
    finally:
        transport.close()


@pytest.fixture(scope="module")
def server() -> Iterator[StoreServer]:
    server = StoreServer(LOOPBACK)
    yield server
    server.close()


@pytest.fixture(scope="module")
def standin() -> Iterator[StandinServer]:
    server = StandinServer()
    yield server
    server.close()


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(WORKERS), mp_context=context) as pool:
        yield pool


@pytest.fixture(scope="module")
def epochs() -> Iterator[int]:
    return itertools.count()


@pytest.fixture(
    params=[
        "inproc",
        "staged",
        pytest.param("gloo-threads", marks=pytest.mark.gloo),
        pytest.param("gloo-processes", marks=pytest.mark.gloo),
        pytest.param("nccl", marks=pytest.mark.gloo),
    ]
)
def run(request: pytest.FixtureRequest, epochs: Iterator[int]) -> Run:
    """Run a case on all members over one backend; return their results by name."""

    def on_inproc(case: Case, timeout_s: float = PATIENT_S) -> dict[str, Any]:
        return cases.run_threads(InprocHub(WORKERS, timeout_s).transport, case)

    def on_staged(case: Case, timeout_s: float = PATIENT_S) -> dict[str, Any]:
        hub = InprocHub(WORKERS, timeout_s)
        # all tensors of the suite are on the CPU, so this stages every one of them
        return cases.run_threads(
            lambda name: StagedTransport(hub.transport(name), torch.device("cpu")), case
        )

    def on_threads(case: Case, timeout_s: float = PATIENT_S) -> dict[str, Any]:
        port, epoch = request.getfixturevalue("server").port, next(epochs)
        make = partial(gloo_transport, port=port, epoch=epoch, timeout_s=timeout_s)
        return cases.run_threads(make, case)

    def on_processes(case: Case, timeout_s: float = PATIENT_S) -> dict[str, Any]:
        port, epoch = request.getfixturevalue("server").port, next(epochs)
        pool = request.getfixturevalue("pool")
        futures = {
            name: pool.submit(run_member, name, port, epoch, timeout_s, case) for name in WORKERS
        }
        return {name: future.result(PATIENT_S) for name, future in futures.items()}

    def on_nccl(case: Case, timeout_s: float = PATIENT_S) -> dict[str, Any]:
        port, epoch = request.getfixturevalue("server").port, next(epochs)
        standin = Standin(request.getfixturevalue("standin").address, jitter_s=1e-3)
        return cases.run_threads(
            lambda name: standin(name, (LOOPBACK, port), epoch, timeout_s, PATIENT_S), case
        )

    runners = {
        "nccl": on_nccl,
        "inproc": on_inproc,
        "staged": on_staged,
        "gloo-threads": on_threads,
        "gloo-processes": on_processes,
    }
    return runners[request.param]


def rows(source: str, target: str, count: int, salt: int = 0) -> list[list[float]]:
    return [[float(value(source, target, salt))] * 3] * count


def test_a_grouped_transfer_moves_exact_sizes_between_all_pairs(run: Run) -> None:
    sizes = {edge: 1 + i for i, edge in enumerate(itertools.product(ATTENTION, EXPERTS))}
    assert run(cases.grouped) == {
        a: {f: rows(f, a, sizes[a, f], 1) for f in EXPERTS} for a in ATTENTION
    } | {f: {a: rows(a, f, sizes[a, f]) for a in ATTENTION} for f in EXPERTS}


def test_zero_rows_are_legal(run: Run) -> None:
    assert run(cases.zero_rows) == {
        "A0.0": {},
        "A0.1": {},
        "F0.0": {a: rows(a, "F0.0", 2) for a in ATTENTION},
        "F0.1": {"A0.0": rows("A0.0", "F0.1", 2), "A0.1": []},
        "F0.2": {"A0.0": [], "A0.1": []},
    }


def test_a_part_for_oneself_is_copied(run: Run) -> None:
    results = run(cases.mesh_with_self)
    assert {f: results[f] for f in EXPERTS} == {
        f: {s: rows(s, f, 2) for s in EXPERTS} for f in EXPERTS
    }


def test_posts_arrive_in_order(run: Run) -> None:
    results = run(cases.order)
    assert {f: results[f] for f in EXPERTS} == {
        f: [{a: [100 * value(a, f) + i] * (i % 3 + 1) for a in ATTENTION} for i in range(20)]
        for f in EXPERTS
    }


def test_all_types_travel(run: Run) -> None:
    results = run(cases.dtypes)
    assert {f: results[f] for f in EXPERTS} == {
        f: {
            (str(dtype), a): (str(dtype), [value(a, f) + i for i in range(7)])
            for dtype in cases.DTYPES
            for a in ATTENTION
        }
        for f in EXPERTS
    }


BOTH_WAYS = {a: {f: (float(value(f, a)),) * 3 for f in EXPERTS} for a in ATTENTION} | {
    f: {a: (float(value(a, f)),) * 3 for a in ATTENTION} for f in EXPERTS
}


def test_large_messages_both_ways_do_not_deadlock(run: Run) -> None:
    assert run(cases.both_ways) == BOTH_WAYS


@pytest.mark.gloo
@pytest.mark.parametrize("run", ["gloo-processes"], indirect=True)
def test_messages_that_no_buffer_of_the_system_takes_do_not_deadlock(run: Run) -> None:
    """Two micro-batches in flight in opposite directions, with more than 64 MiB on every edge."""
    assert run(partial(cases.both_ways, count=17 * 2**20)) == BOTH_WAYS


def test_post_does_not_wait_for_the_peer(run: Run) -> None:
    posted_s, waited_s = run(cases.late_receiver)["A0.0"]
    assert posted_s < 0.5 < waited_s


def test_sums_are_those_of_one_process_to_the_bit(run: Run) -> None:
    results = run(cases.reductions)
    values = {f: cases.values_of(Member(f, None, {})) for f in EXPERTS}
    sums = [(a + b) + c for a, b, c in zip(*(values[f] for f in EXPERTS), strict=True)]
    flat = torch.cat([t.view(-1) for t in sums])
    first = [torch.cat([t.view(-1) for t in values[f]])[:4].double() for f in EXPERTS]
    bounds = shard_bounds(len(flat), 3)
    for rank, f in enumerate(EXPERTS):
        summed, shard, gathered, total = results[f]
        assert summed == [[t.tolist() for t in sums]] * 3
        assert shard == flat[slice(*bounds[rank])].tolist()
        assert gathered == flat.tolist()
        assert total == ((first[0] + first[1]) + first[2]).tolist()


def test_posts_that_cannot_be_carried_are_refused(run: Run) -> None:
    results = run(cases.refusals)
    direction = "it goes from A0.0, A0.1 to F0.0, F0.1, F0.2"
    assert results["A0.0"] == [
        f"channel A0>F0.act: A0.0 receives from F0.0, but {direction}",
        f"channel A0>F0.act: A0.0 sends to A0.1, but {direction}",
        "channel A0>F0.act: A0.0 sends to F0.0 a tensor of shape (3, 2) with strides (1, 3); "
        "it must be contiguous",
        "channel A0>F0.act is open already on A0.0",
    ]
    sent = "channel experts: F0.0 sends itself 24 bytes (6 x float32) but expects"
    assert results["F0.0"] == [f"{sent} nothing", f"{sent} 48 bytes (6 x float64)"]


def test_a_timeout_names_channel_worker_and_peer(run: Run) -> None:
    results = run(cases.silent_peer, timeout_s=HASTY_S)
    for name, channel in (("A0.1", "A0>F0.act"), ("F0.2", "experts")):
        message = results[name]
        assert all(word in message for word in (name, "F0.1", channel, "post 0", "within 0.8 s"))


def test_a_closed_peer_is_noticed_at_once(run: Run) -> None:
    results = run(cases.closing_peer)
    message, waited_s = results["A0.1"]
    assert "channel F0>A0.grad, worker A0.1, post 0: F0.1 has closed" in message
    assert waited_s < 5
    assert "channel A0>F0.act, worker F0.1, post 0: " in results["F0.1"]
    assert "closed" in results["F0.1"]


@pytest.fixture(params=["inproc", pytest.param("gloo", marks=pytest.mark.gloo)])
def make(request: pytest.FixtureRequest, epochs: Iterator[int]) -> Callable[[str], Transport]:
    """Transports that give up soon on members that do not come."""
    if request.param == "inproc":
        return InprocHub(WORKERS, HASTY_S).transport
    port, epoch = request.getfixturevalue("server").port, next(epochs)

    def hasty(name: str) -> GlooTransport:
        store = connect(LOOPBACK, port, PATIENT_S)
        return GlooTransport(
            name, store, epoch=epoch, host=LOOPBACK, timeout_s=1.0, start_timeout_s=HASTY_S
        )

    return hasty


def test_opening_names_the_members_that_do_not_come(make: Callable[[str], Transport]) -> None:
    spec = ChannelSpec("late", ("A0.0",), ("F0.0", "F0.1"))
    with pytest.raises(
        TransportError, match=r"late: A0\.0 has waited 0\.8 s for F0\.0, F0\.1 to open it"
    ):
        make("A0.0").open([spec])


def test_members_must_agree_on_a_channel(make: Callable[[str], Transport]) -> None:
    def open_otherwise(name: str) -> Transport:
        transport = make(name)
        if name == "F0.0":
            spec = ChannelSpec("pair", ("F0.0",), ("A0.0",))
            message = cases.error_of(lambda: transport.open([spec]))
            raise TransportError(message)
        return transport

    spec = ChannelSpec("pair", ("A0.0",), ("F0.0",))
    results = cases.run_threads(open_otherwise, lambda member: None, (spec,))
    assert "channel pair: A0.0 opens it as" in str(results["A0.0"])
    assert "channel pair: F0.0 opens it as" in str(results["F0.0"])


@pytest.mark.gloo
def test_two_runs_on_one_machine_do_not_meet() -> None:
    """Same workers, same channels, same epoch, at the same time; only their stores are two."""
    together = threading.Barrier(2 * len(WORKERS))

    def count(source: str, target: str) -> int:
        return 0 if target == "F0.1" else 2

    def exchanges(member: Member, salt: int) -> list[Any]:
        together.wait(PATIENT_S)  # all channels of both are open
        return [
            cases.exchange(member, spec, count, salt)
            for _ in range(3)
            for spec in (FORWARD, BACKWARD)
        ]

    def run_with(salt: int) -> dict[str, Any]:
        with closing(StoreServer(LOOPBACK)) as store:
            make = partial(gloo_transport, port=store.port, epoch=0, timeout_s=PATIENT_S)
            return cases.run_threads(make, partial(exchanges, salt=salt))

    with ThreadPoolExecutor(2) as threads:
        for salt, results in enumerate(threads.map(run_with, range(2))):
            assert results == {
                a: [{}, {f: rows(f, a, 2, salt) for f in EXPERTS}] * 3 for a in ATTENTION
            } | {
                f: [{a: rows(a, f, count(a, f), salt) for a in ATTENTION}, {}] * 3 for f in EXPERTS
            }


def die_while_others_wait(name: str, port: int, report: Any) -> None:
    transport = gloo_transport(name, port, 10**6, PATIENT_S)
    channels = transport.open([MESH])
    if name == "F0.1":
        os._exit(9)
    work = channels[MESH.name].post({}, {"F0.1": torch.zeros(4)})
    report.put((name, cases.error_of(work.wait)))


@pytest.mark.gloo
def test_a_killed_process_is_noticed_at_once(server: StoreServer) -> None:
    context = multiprocessing.get_context("spawn")
    report = context.Queue()
    processes = [
        context.Process(target=die_while_others_wait, args=(name, server.port, report))
        for name in EXPERTS
    ]
    for process in processes:
        process.start()
    messages = dict(report.get(timeout=60) for _ in range(2))
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 9, 0]
    assert messages == {
        name: f"channel experts, worker {name}, post 0: F0.1 has closed the connection during the "
        "receive of 16 bytes (4 x float32) from F0.1"
        for name in ("F0.0", "F0.2")
    }
