"""The run's store: where it listens, and what is said when nobody answers."""

import socket

import pytest

from disagmoe.errors import TransportError
from disagmoe.transport.rendezvous import StoreServer, connect

pytestmark = pytest.mark.gloo


def test_clients_of_a_server_share_keys() -> None:
    server = StoreServer("127.0.0.1")
    connect(server.host, server.port, 5).set("key", "value")
    assert connect(server.host, server.port, 5).get("key") == b"value"
    server.close()
    server.close()


def test_a_closed_server_frees_its_port() -> None:
    server = StoreServer("127.0.0.1")
    server.close()
    with socket.create_server(("127.0.0.1", server.port)) as again:
        assert again.getsockname()[1] == server.port


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(
        TransportError, match=r"cannot listen on 192\.0\.2\.1: .*use an address of this machine"
    ):
        StoreServer("192.0.2.1")


def test_a_missing_store_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(
        TransportError, match=rf"no store answers at 127\.0\.0\.1:{port} within 1 s"
    ):
        connect("127.0.0.1", port, 1)
