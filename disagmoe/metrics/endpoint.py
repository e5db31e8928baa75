"""An HTTP endpoint for Prometheus, on a thread of its own: it never stops what it tells about."""

import errno
import json
import logging
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

log = logging.getLogger(__name__)

_TRIES = 64
"""Ports from the wanted one on that are tried, before any free one is taken."""
_BUSY = (errno.EADDRINUSE, errno.EACCES)
"""A port that somebody has, and one that only root may take."""
_IDLE_TIMEOUT_S = 30.0


class Endpoint:
    """Serves `/metrics`, and `/sd` where targets are known."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
        self._thread.start()
        self.port: int = server.server_address[1]

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve(
    registry: CollectorRegistry,
    host: str,
    port: int,
    targets: Callable[[], list[dict[str, Any]]] | None = None,
) -> Endpoint | None:
    """Serve `registry` at address `host`, on `port` or the next free one; 0 takes any.

    Returns None, and logs why, where that is not possible: nobody trains less for it.
    """
    handler = _handler(registry, targets)
    wanted = [*range(port, min(port + _TRIES, 65536))] if port else []
    for candidate in (*wanted, 0):
        try:
            server = _server(host)((host, candidate), handler)
        except OSError as error:
            if candidate and error.errno in _BUSY:
                continue
            log.warning("no metrics: cannot serve at %s: %s", host, error)
            return None
        endpoint = Endpoint(server)
        if port and endpoint.port != port:
            log.warning("metrics: port %d is taken or not allowed", port)
        log.info("metrics at %s", target(host, endpoint.port))
        return endpoint
    raise AssertionError("port 0 was tried")


def target(host: str, port: int) -> str:
    """Return an address as Prometheus takes it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _server(host: str) -> type[ThreadingHTTPServer]:
    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # a restarted worker gets its port back although connections of the old one linger; a port
        # that somebody listens on is refused all the same
        allow_reuse_address = True
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            log.debug("metrics: a request of %s failed", client_address, exc_info=True)

    return Server


def _handler(
    registry: CollectorRegistry, targets: Callable[[], list[dict[str, Any]]] | None
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _IDLE_TIMEOUT_S

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path in ("/metrics", "/"):
                encode, content_type = choose_encoder(self.headers.get("Accept", ""))
                self._answer(encode(registry), content_type)
            elif path == "/sd" and targets is not None:
                self._answer(json.dumps(targets()).encode(), "application/json")
            else:
                self.send_error(404)

        def _answer(self, body: bytes, content_type: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            log.debug(format, *args)

    return Handler
