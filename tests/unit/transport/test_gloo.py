"""What only the gloo transport does: addresses, short messages, devices."""

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from disagmoe.errors import TransportError
from disagmoe.transport.base import ChannelSpec, Transport
from disagmoe.transport.gloo import GlooTransport
from disagmoe.transport.rendezvous import StoreServer, connect
from tests.contract.transport_cases import Member, error_of, run_threads

pytestmark = pytest.mark.gloo

A, F = "A0.0", "F0.0"
FORWARD = ChannelSpec("A0>F0.act", (A,), (F,))
TIMEOUT_S = 20.0
LISTEN = "0A"  # state column of /proc/net/tcp


@pytest.fixture(scope="module")
def server() -> Iterator[StoreServer]:
    server = StoreServer("127.0.0.1")
    yield server
    server.close()


Make = Callable[..., Callable[[str], Transport]]


@pytest.fixture(scope="module")
def make(server: StoreServer) -> Make:
    epochs = itertools.count()

    def with_options(**options: str) -> Callable[[str], Transport]:
        epoch = next(epochs)

        def transport(name: str) -> GlooTransport:
            return GlooTransport(
                name,
                connect(server.host, server.port, TIMEOUT_S),
                epoch=epoch,
                timeout_s=TIMEOUT_S,
                start_timeout_s=TIMEOUT_S,
                **{"host": "127.0.0.1"} | options,
            )

        return transport

    return with_options


def transfer(member: Member) -> list[float] | None:
    rows = torch.ones(5)
    if member.me == A:
        member.post(FORWARD, {F: rows * 3}).wait()
        return None
    member.post(FORWARD, {}, {A: rows}).wait()
    return rows.tolist()


def listening_addresses() -> set[str]:
    """Local addresses of all listening sockets of this process, in hex as the kernel has them."""
    inodes = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            inodes.add(os.readlink(descriptor))
        except FileNotFoundError:
            continue
    lines = [
        line.split()
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in Path(table).read_text().splitlines()[1:]
    ]
    return {
        line[1].split(":")[0]
        for line in lines
        if line[3] == LISTEN and f"socket:[{line[9]}]" in inodes
    }


def test_all_sockets_listen_on_loopback_alone(make: Make) -> None:
    def case(member: Member) -> set[str]:
        transfer(member)
        return listening_addresses()

    results = run_threads(make(), case, (FORWARD,))
    assert results == {A: {"0100007F"}, F: {"0100007F"}}


def test_an_interface_may_be_named(make: Make) -> None:
    assert run_threads(make(interface="lo"), transfer, (FORWARD,)) == {A: None, F: [3.0] * 5}


@pytest.mark.parametrize("options", [{"interface": "nodev7"}, {"host": "192.0.2.1"}])
def test_a_foreign_address_is_refused(make: Make, options: dict[str, str]) -> None:
    name = next(iter(options.values()))
    with pytest.raises(TransportError, match=rf"worker A0\.0: gloo cannot bind to {name}"):
        make(**options)(A)


def test_a_message_shorter_than_expected_is_an_error(make: Make) -> None:
    def case(member: Member) -> str | None:
        if member.me == A:
            member.post(FORWARD, {F: torch.ones(5)}).wait()
            return None
        return error_of(member.post(FORWARD, {}, {A: torch.zeros(9)}).wait)

    assert run_threads(make(), case, (FORWARD,)) == {
        A: None,
        F: "channel A0>F0.act, worker F0.0, post 0: A0.0 sent less than the 36 bytes "
        "(9 x float32) that were expected",
    }


def test_only_cpu_tensors_travel(make: Make) -> None:
    def case(member: Member) -> str | None:
        if member.me == F:
            return None
        return error_of(lambda: member.post(FORWARD, {F: torch.ones(5, device="meta")}))

    assert run_threads(make(), case, (FORWARD,))[A] == (
        "channel A0>F0.act: the part of A0.0 and F0.0 is on meta; gloo carries CPU tensors only"
    )


def test_epochs_of_one_store_do_not_meet(make: Make) -> None:
    for _ in range(2):
        assert run_threads(make(), transfer, (FORWARD,))[F] == [3.0] * 5
