"""Transfers that are too large for one group of NCCL."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from disagmoe.transport.rendezvous import StoreServer
from tests.contract import transport_cases as cases
from tests.contract.transport_cases import WORKERS, Case
from tests.nccl.rig import LOOPBACK, Standin
from tests.nccl.server import StandinServer

pytestmark = pytest.mark.gloo

CASES = (cases.grouped, cases.mesh_with_self, cases.zero_rows, cases.both_ways)


@pytest.fixture(scope="module")
def store() -> Iterator[tuple[str, int]]:
    with closing(StoreServer(LOOPBACK)) as server:
        yield server.host, server.port


def results(
    case: Case, server: StandinServer, store: tuple[str, int], epoch: int
) -> dict[str, Any]:
    standin = Standin(server.address, jitter_s=1e-3)
    return cases.run_threads(lambda name: standin(name, store, epoch, 20.0), case)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_what_several_groups_bring_is_what_one_brings(
    case: Case, store: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch = 2 * CASES.index(case)
    with closing(StandinServer()) as server:
        expected = results(case, server, store, epoch)
        assert server.most_parts > 2
    monkeypatch.setattr("disagmoe.transport.nccl.MOST_CALLS", 2)
    with closing(StandinServer()) as server:
        came = results(case, server, store, epoch + 1)
        assert (server.most_parts, server.violations) == (2, [])
    assert came == expected
    assert set(expected) == set(WORKERS)
