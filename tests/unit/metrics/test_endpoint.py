"""The endpoint: serves on a free port, and is never the reason that something ends."""

import json
import logging
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from disagmoe.metrics import catalogue
from disagmoe.metrics.board import Board
from disagmoe.metrics.endpoint import serve, target

pytestmark = pytest.mark.gloo  # sockets
IDENTITY = {"role": "driver", "group": "0", "rank": "0", "ring": "0"}


def board() -> Board:
    made = Board(IDENTITY)
    made.set(catalogue.LOSS, 2.5)
    return made


def get(host: str, port: int, path: str) -> tuple[str, str]:
    with urllib.request.urlopen(f"http://{target(host, port)}{path}", timeout=10) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


@contextmanager
def listening(host: str = "127.0.0.1") -> Iterator[int]:
    with closing(socket.socket()) as taken:
        taken.bind((host, 0))
        taken.listen()
        yield taken.getsockname()[1]


def test_metrics_and_targets() -> None:
    endpoint = serve(board().registry, "127.0.0.1", 0, lambda: [{"targets": ["a:1"]}])
    assert endpoint is not None
    with closing(endpoint):
        kind, text = get("127.0.0.1", endpoint.port, "/metrics")
        assert kind.startswith("text/plain")
        assert 'disagmoe_loss{group="0",rank="0",ring="0",role="driver"} 2.5' in text.splitlines()
        assert json.loads(get("127.0.0.1", endpoint.port, "/sd")[1]) == [{"targets": ["a:1"]}]
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get("127.0.0.1", endpoint.port, "/else")


def test_a_worker_has_no_list_of_targets() -> None:
    endpoint = serve(board().registry, "127.0.0.1", 0)
    assert endpoint is not None
    with closing(endpoint), pytest.raises(urllib.error.HTTPError, match="404"):
        get("127.0.0.1", endpoint.port, "/sd")


def test_a_taken_port_is_left_for_the_next(caplog: pytest.LogCaptureFixture) -> None:
    with listening() as taken:
        endpoint = serve(board().registry, "127.0.0.1", taken)
        assert endpoint is not None
        with closing(endpoint):
            assert endpoint.port != taken
            assert "disagmoe_loss" in get("127.0.0.1", endpoint.port, "/metrics")[1]
    assert f"port {taken} is taken or not allowed" in caplog.text


def test_two_runs_with_one_port_have_two() -> None:
    with listening() as free:
        pass
    first = serve(board().registry, "127.0.0.1", free)
    second = serve(board().registry, "127.0.0.1", free)
    assert first is not None
    assert second is not None
    with closing(first), closing(second):
        assert first.port == free
        assert second.port != free


def test_an_address_of_another_host_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert serve(board().registry, "192.0.2.1", 0) is None
    assert "no metrics: cannot serve at 192.0.2.1" in caplog.text


def test_ipv6() -> None:
    if not socket.has_ipv6:
        pytest.skip("this Python has no IPv6")
    endpoint = serve(board().registry, "::1", 0)
    if endpoint is None:
        pytest.skip("this machine has no IPv6 loopback")
    with closing(endpoint):
        assert "disagmoe_loss" in get("::1", endpoint.port, "/metrics")[1]
