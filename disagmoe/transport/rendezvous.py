"""Where workers meet to open their channels: one key-value store per run, on a chosen address."""

import socket
from datetime import timedelta

from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]

from disagmoe.errors import TransportError

_SERVER_TIMEOUT = timedelta(seconds=30)


class StoreServer:
    """The run's store. It listens on `host` alone and lives as long as this object.

    torch's TCPStore binds all interfaces by itself, whatever host it is given; it is therefore
    handed a socket that is bound already.
    """

    def __init__(self, host: str) -> None:
        """Listen on a free port of `host`. Raises TransportError when it cannot be bound."""
        try:
            family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
            listener = socket.create_server((host, 0), family=family)
        except OSError as error:
            raise TransportError(
                f"cannot listen on {host}: {error}; use an address of this machine"
            ) from error
        self.host = host
        self.port: int = listener.getsockname()[1]
        # The store owns the descriptor from here on and closes it.
        self._store: TCPStore | None = TCPStore(
            host,
            self.port,
            is_master=True,
            wait_for_workers=False,
            timeout=_SERVER_TIMEOUT,
            master_listen_fd=listener.detach(),
        )

    def close(self) -> None:
        """Stop listening; safe to call twice."""
        self._store = None


def connect(host: str, port: int, timeout_s: float) -> TCPStore:
    """Return a client of the store at `host`:`port`; its own waits last `timeout_s` at most.

    Raises TransportError when nothing answers there within `timeout_s`.
    """
    timeout = timedelta(seconds=timeout_s)
    try:
        return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timeout)
    except DistError as error:
        raise TransportError(
            f"no store answers at {host}:{port} within {timeout_s:g} s: "
            f"{str(error).splitlines()[0]}"
        ) from error
