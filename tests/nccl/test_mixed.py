"""Workers of one run that carry tensors over different backends hear of it before the first send,
wherever each of them waits for the others."""

import itertools
from collections.abc import Iterator
from contextlib import closing

import pytest

from disagmoe.errors import TransportError
from disagmoe.transport.base import ChannelSpec, Transport
from disagmoe.transport.gloo import GlooTransport
from disagmoe.transport.rendezvous import StoreServer, connect
from tests.contract.transport_cases import run_threads
from tests.nccl.rig import LOOPBACK, Standin
from tests.nccl.server import StandinServer

pytestmark = pytest.mark.gloo

A, B, F = "A0.0", "A0.1", "F0.0"
ROWS = ChannelSpec("A0>F0.act", (A, B), (F,))
COUNTS = ChannelSpec("A0>F0.act.counts", (A, B), (F,), on_host=True)
AMONG_A = ChannelSpec("attention0.replicas", (A, B), (A, B), mesh=True)
WORLD = ChannelSpec("world", (A, B, F), (A, B, F), on_host=True)
START_S = 20.0


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    with closing(StandinServer()) as server:
        yield server.address


@pytest.fixture(scope="module")
def store() -> Iterator[tuple[str, int]]:
    with closing(StoreServer(LOOPBACK)) as server:
        yield server.host, server.port


@pytest.fixture(scope="module")
def epochs() -> Iterator[int]:
    return itertools.count()


@pytest.mark.parametrize(
    "specs",
    [
        (COUNTS, ROWS, AMONG_A, WORLD),
        (ROWS, COUNTS, AMONG_A, WORLD),
        (AMONG_A, ROWS, WORLD),
    ],
    ids=lambda specs: specs[0].name,
)
@pytest.mark.parametrize("odd", [A, F])
def test_the_workers_are_told_who_declared_what(
    address: tuple[str, int],
    store: tuple[str, int],
    epochs: Iterator[int],
    specs: tuple[ChannelSpec, ...],
    odd: str,
) -> None:
    epoch = next(epochs)
    standin = Standin(address)

    def make(name: str) -> Transport:
        if name != odd:
            return standin(name, store, epoch, START_S, START_S)
        return GlooTransport(
            name,
            connect(*store, START_S),
            epoch=epoch,
            host=LOOPBACK,
            timeout_s=START_S,
            start_timeout_s=START_S,
        )

    ended = run_threads(make, lambda member: "opened", specs)
    assert set(ended) == {A, B, F}
    for name, error in ended.items():
        assert isinstance(error, TransportError), (name, error)
        assert str(error).startswith("channel ")
        assert f" different ways: {odd} over gloo, " in str(error)
        assert str(error).endswith(
            " over nccl; all workers of a run need the same cluster.transport and cluster.device"
        )
