"""What NCCL would leave hanging or garbled is found, and the message says where."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from disagmoe.errors import TransportError
from disagmoe.transport.base import ChannelSpec, TransportChannel
from disagmoe.transport.nccl import NcclTransport
from disagmoe.transport.rendezvous import StoreServer
from tests.nccl.rig import LOOPBACK, Standin
from tests.nccl.server import StandinServer

pytestmark = pytest.mark.gloo

A, F = "A0.0", "F0.0"
OUT, BACK = ChannelSpec("A0>F0.act", (A,), (F,)), ChannelSpec("F0>A0.grad", (F,), (A,))
CONTROL = ChannelSpec("world", (A, F), (A, F), on_host=True)
TIMEOUT_S = 1.5
Body = Callable[[NcclTransport, dict[str, TransportChannel]], object]


@pytest.fixture(scope="module")
def store() -> Iterator[StoreServer]:
    server = StoreServer(LOOPBACK)
    yield server
    server.close()


@pytest.fixture(scope="module")
def server() -> Iterator[StandinServer]:
    server = StandinServer()
    yield server
    server.close()


@pytest.fixture(scope="module")
def epochs() -> Iterator[int]:
    return itertools.count()


@pytest.fixture
def pair(
    store: StoreServer, server: StandinServer, epochs: Iterator[int]
) -> Callable[[Body, Body], dict[str, str]]:
    """Let both workers do something; return the error that each ends with, or ''."""
    epoch = next(epochs)

    def run(attention: Body, experts: Body) -> dict[str, str]:
        ended: dict[str, str] = {}
        done = threading.Barrier(2)

        def body(name: str, action: Body) -> None:
            transport = Standin(server.address)(name, (store.host, store.port), epoch, TIMEOUT_S)
            try:
                action(transport, transport.open([OUT, BACK, CONTROL]))
                ended[name] = ""
            except TransportError as error:
                ended[name] = str(error)
            finally:
                done.wait(30)
                transport.close()

        threads = [
            threading.Thread(target=body, args=part) for part in ((A, attention), (F, experts))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(40)
            assert not thread.is_alive()
        return ended

    return run


def rows(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(count, dtype=dtype)


def test_a_wrong_count(pair: Callable[[Body, Body], dict[str, str]]) -> None:
    ended = pair(
        lambda _, open_: open_[OUT.name].post({F: rows(10)}, {}, "L3 m1").wait(),
        lambda _, open_: open_[OUT.name].post({}, {A: rows(9)}, "L3 m1").wait(),
    )
    sizes = "40 bytes (10 x float32)", "36 bytes (9 x float32)"
    assert (
        f"channel A0>F0.act, worker A0.0, post 0 (L3 m1): A0.0 sends {sizes[0]}, F0.0 expects "
        f"{sizes[1]}" in ended[A]
    )
    assert (
        f"channel A0>F0.act, worker F0.0, post 0 (L3 m1): F0.0 expects {sizes[1]}, A0.0 sends "
        f"{sizes[0]}" in ended[F]
    )


def test_a_wrong_type(pair: Callable[[Body, Body], dict[str, str]]) -> None:
    ended = pair(
        lambda _, open_: open_[OUT.name].post({F: rows(10)}, {}, "L0 m2").wait(),
        lambda _, open_: open_[OUT.name].post({}, {A: rows(10, torch.int32)}, "L0 m2").wait(),
    )
    assert (
        "channel A0>F0.act, worker F0.0, post 0 (L0 m2): F0.0 expects 40 bytes (10 x int32), A0.0 "
        "sends 40 bytes (10 x float32)" in ended[F]
    )


def test_another_order_on_a_channel(pair: Callable[[Body, Body], dict[str, str]]) -> None:
    def sends(_: NcclTransport, open_: dict[str, TransportChannel]) -> None:
        works = [open_[OUT.name].post({F: rows(n)}, {}, f"L0 m{m}") for m, n in ((0, 4), (1, 5))]
        for work in works:
            work.wait()

    def receives(_: NcclTransport, open_: dict[str, TransportChannel]) -> None:
        works = [open_[OUT.name].post({}, {A: rows(n)}, f"L0 m{m}") for m, n in ((1, 5), (0, 4))]
        for work in works:
            work.wait()

    ended = pair(sends, receives)
    assert (
        "channel A0>F0.act, worker A0.0, post 0 (L0 m0): F0.0 has L0 m1 in its post 0 at this "
        "place, so one of them launches in another order" in ended[A]
    )
    assert "channel A0>F0.act, worker F0.0, post 0 (L0 m1): A0.0 has L0 m0" in ended[F]


def test_another_order_of_channels(
    pair: Callable[[Body, Body], dict[str, str]], server: StandinServer
) -> None:
    def attention(_: NcclTransport, open_: dict[str, TransportChannel]) -> None:
        sent = open_[OUT.name].post({F: rows(4)}, {}, "L1 m1")
        received = open_[BACK.name].post({}, {F: rows(4)}, "L1 m0")
        sent.wait()
        received.wait()

    def experts(_: NcclTransport, open_: dict[str, TransportChannel]) -> None:
        sent = open_[BACK.name].post({A: rows(4)}, {}, "L1 m0")
        received = open_[OUT.name].post({}, {A: rows(4)}, "L1 m1")
        sent.wait()
        received.wait()

    before = len(server.violations)
    ended = pair(attention, experts)
    assert (
        "channel F0>A0.grad, worker A0.0, post 0 (L1 m0): A0.0 launches A0>F0.act L1 m1 before "
        "F0>A0.grad L1 m0, F0.0 after it; NCCL needs one order" in ended[A]
    )
    assert "channel A0>F0.act, worker F0.0, post 0 (L1 m1): F0.0 launches F0>A0.grad" in ended[F]
    assert any(text.startswith("deadlock: ") for text in server.violations[before:])


def test_a_missing_receive(pair: Callable[[Body, Body], dict[str, str]]) -> None:
    def waits(transport: NcclTransport, open_: dict[str, TransportChannel]) -> None:
        open_[OUT.name].post({F: rows(4)}, {}, "L2 m0").wait()

    def forgets(transport: NcclTransport, open_: dict[str, TransportChannel]) -> None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:  # until told that the other has failed
            transport.check()
            time.sleep(0.05)

    ended = pair(waits, forgets)
    assert (
        "channel A0>F0.act, worker A0.0, post 0 (L2 m0): F0.0 has not launched its receive of the "
        "16 bytes (4 x float32)" in ended[A]
    )
    assert "no progress within 1.5 s" in ended[A]
    assert ended[F].startswith("another worker has failed: channel A0>F0.act, worker A0.0, post 0")


def test_an_edge_that_is_connected_in_the_middle_of_a_step(
    pair: Callable[[Body, Body], dict[str, str]],
    server: StandinServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("disagmoe.transport.nccl.NcclChannel.warm", lambda channel: None)
    before = len(server.violations)
    ended = pair(
        lambda _, open_: open_[OUT.name].post({F: rows(4)}, {}, "L0 m0").wait(),
        lambda _, open_: open_[OUT.name].post({}, {A: rows(4)}, "L0 m0").wait(),
    )
    assert all(ended.values())
    found = server.violations[before:]
    assert found
    assert all(text.endswith(" uses an edge that was never warmed") for text in found)


def test_a_second_launch_thread(pair: Callable[[Body, Body], dict[str, str]]) -> None:
    told: list[str] = []

    def sends_from_two(_: NcclTransport, open_: dict[str, TransportChannel]) -> None:
        open_[OUT.name].post({F: rows(4)}, {}, "L0 m0").wait()

        def second() -> None:
            with pytest.raises(TransportError) as caught:
                open_[OUT.name].post({F: rows(4)}, {}, "L0 m1")
            told.append(str(caught.value))

        thread = threading.Thread(target=second, name="other")
        thread.start()
        thread.join()

    ended = pair(
        sends_from_two, lambda _, open_: open_[OUT.name].post({}, {A: rows(4)}, "L0 m0").wait()
    )
    assert ended == {A: "", F: ""}
    assert told[0].startswith(
        "channel A0>F0.act, worker A0.0, post 1 (L0 m1): posted by thread other, but "
    )
    assert told[0].endswith("NCCL needs one thread and one order")


def test_an_asynchronous_error(pair: Callable[[Body, Body], dict[str, str]]) -> None:
    def struck(transport: NcclTransport, open_: dict[str, TransportChannel]) -> None:
        link = transport._links[OUT.name]
        link.communicator.injected = 8  # type: ignore[attr-defined] # one that cupy does not know
        open_[BACK.name].post({}, {F: rows(4)}, "L5 m0").wait()

    def bystander(transport: NcclTransport, open_: dict[str, TransportChannel]) -> None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            transport.check()
            time.sleep(0.05)

    ended = pair(struck, bystander)
    assert "channel A0>F0.act, worker A0.0: NCCL cannot go on: status 8, timeout" in ended[A]
    assert "channel F0>A0.grad, worker A0.0, post 0 (L5 m0) is not complete" in ended[A]
    assert ended[F] != ""


def test_a_buffer_is_received_into_only_after_its_reader(
    pair: Callable[[Body, Body], dict[str, str]],
) -> None:
    seen: list[tuple[int, list[float]]] = []

    def sends(_: NcclTransport, open_: dict[str, TransportChannel]) -> None:
        for value in (1.0, 2.0, 3.0):
            open_[OUT.name].post({F: torch.full((6,), value)}, {}, "L0 m0").wait()

    def receives(transport: NcclTransport, open_: dict[str, TransportChannel]) -> None:
        for _ in range(3):
            buffer = transport.take(24)
            open_[OUT.name].post({}, {A: buffer.view(torch.float32)}, "L0 m0").wait()
            seen.append((buffer.data_ptr(), buffer.view(torch.float32).tolist()))
            transport.give_back(buffer)
        assert transport.buffer_bytes == 512

    assert pair(sends, receives) == {A: "", F: ""}
    assert [values for _, values in seen] == [[1.0] * 6, [2.0] * 6, [3.0] * 6]
    assert len({pointer for pointer, _ in seen}) == 1
