"""Where workers meet to open their channels: one key-value store per run, on a chosen address."""

import socket
import time
from collections.abc import Iterable
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


def declare(store: Store, me: str, backend: str) -> None:
    """Tell the others that `me` carries tensors over `backend`, before it waits for any of them;
    `store` is that of the epoch. What `me` has said first holds: a backend that only serves another
    one has nothing to add."""
    store.compare_set(f"backend/{me}", "", backend)


def meet(store: Store, spec: ChannelSpec, me: str, timeout_s: float) -> None:
    """Wait until all members of `spec`, who have declared their backends, have come to open it;
    `store` is that of the epoch.

    No backend could tell who is missing. Raises TransportError that names who does not come within
    `timeout_s`, or who has another idea of the channel, or another backend: such a worker may be
    waiting at another channel.
    """
    card = f"{', '.join(spec.sources)} to {', '.join(spec.targets)}"
    hello = {name: f"{spec.name}/hello/{name}" for name in spec.members}
    store.set(hello[me], card)
    deadline = time.monotonic() + timeout_s
    missing = list(spec.members)
    while missing := [name for name in missing if not store.check([hello[name]])]:
        _agree(store, spec, (me, *missing))
        if time.monotonic() > deadline:
            raise TransportError(
                f"channel {spec.name}: {me} has waited {timeout_s:g} s for "
                f"{', '.join(missing)} to open it"
            )
        time.sleep(_POLL_S)
    _agree(store, spec, spec.members)
    for name in spec.members:
        theirs = store.get(hello[name]).decode()
        if theirs != card:
            raise TransportError(
                f"channel {spec.name}: {me} opens it as {card!r}, {name} as {theirs!r}"
            )


def _agree(store: Store, spec: ChannelSpec, names: Iterable[str]) -> None:
    """Raise TransportError where those of `names` who have declared a backend differ in it."""
    keys = {name: f"backend/{name}" for name in names}
    declared: dict[str, list[str]] = {}
    for name, key in keys.items():
        if store.check([key]):
            declared.setdefault(store.get(key).decode(), []).append(name)
    if len(declared) > 1:
        said = ", ".join(f"{', '.join(declared[one])} over {one}" for one in sorted(declared))
        raise TransportError(
            f"channel {spec.name}: its members carry tensors in different ways: {said}; all "
            "workers of a run need the same cluster.transport and cluster.device"
        )
