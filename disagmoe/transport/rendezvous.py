"""Where workers meet to open their channels: one key-value store per run, on a chosen address."""

import socket
import time
from datetime import timedelta

from torch.distributed import DistError, Store, TCPStore  # type: ignore[attr-defined]

from disagmoe.errors import TransportError
from disagmoe.transport.base import ChannelSpec

_SERVER_TIMEOUT = timedelta(seconds=30)
_POLL_S = 0.01


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


def meet(store: Store, spec: ChannelSpec, me: str, backend: str, timeout_s: float) -> None:
    """Wait until all members of `spec` have come to open it over `backend`; `store` is the
    channel's own.

    No backend could tell who is missing. Raises TransportError that names who does not come within
    `timeout_s`, or who has another idea of the channel.
    """
    card = f"{backend}: {', '.join(spec.sources)} to {', '.join(spec.targets)}"
    store.set(f"hello/{me}", card)
    deadline = time.monotonic() + timeout_s
    missing = list(spec.members)
    while missing := [name for name in missing if not store.check([f"hello/{name}"])]:
        if time.monotonic() > deadline:
            raise TransportError(
                f"channel {spec.name}: {me} has waited {timeout_s:g} s for "
                f"{', '.join(missing)} to open it"
            )
        time.sleep(_POLL_S)
    for name in spec.members:
        theirs = store.get(f"hello/{name}").decode()
        if theirs != card:
            raise TransportError(
                f"channel {spec.name}: {me} opens it as {card!r}, {name} as {theirs!r}"
            )
