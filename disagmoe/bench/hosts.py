"""Hosts on this machine: network namespaces behind a switch, and links as slow as wished.

To Ray and gloo they are machines of their own: each has its address, and what they send each other
passes their links. Needs root and iproute2; everything is gone when the block ends.
"""

import ctypes
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from disagmoe.errors import PlacementError

_CLONE_NEWNET = 0x40000000  # linux/sched.h
BURST_BYTES = 20_000
"""Two packets: what a link that was idle gives for nothing. With one it loses some of its rate."""
_QUEUE = "50ms"
"""Longest time that a packet may wait for its turn before it is dropped; none is, see _TCP."""
_TCP = {
    "tcp_congestion_control": "reno",
    "tcp_slow_start_after_idle": "0",
    "tcp_wmem": "4096 131072 131072",
}
"""A sender has at most its small buffer under way, for which the queue has room: no packet is lost,
the rate is not guessed, and a small message waits for milliseconds. So transfers take bytes over
rate, whatever this machine's own settings are. (BBR, for one, took half the rate for the whole one
in one of seven comparisons.)"""
_SETTINGS = Path("/proc/sys/net/ipv4")
_COMMAND_TIMEOUT_S = 20.0
_SUBNET = "10.200.0"
_MTU = 9000
"""As in data centres; fewer packets, so that the hosts' only cores have less to do."""


@dataclass(frozen=True, slots=True)
class Host:
    """One network namespace with one link."""

    index: int
    namespace: str
    switch: str
    """Namespace of the switch that all hosts are plugged into."""

    @property
    def address(self) -> str:
        """Its IPv4 address, which only the other hosts reach."""
        return f"{_SUBNET}.{self.index + 1}"

    @property
    def device(self) -> str:
        """Its network device."""
        return f"host{self.index}"

    @property
    def port(self) -> str:
        """The other end of its link, at the switch."""
        return f"port{self.index}"


@dataclass(frozen=True, slots=True)
class LinkBytes:
    """What has passed a host's link since it was made."""

    sent: int
    received: int

    def __sub__(self, earlier: "LinkBytes") -> "LinkBytes":
        return LinkBytes(self.sent - earlier.sent, self.received - earlier.received)


class HostNetwork:
    """Hosts that are up."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self.hosts = tuple(hosts)

    def limit(self, rate_mbit: float | None) -> None:
        """Let every link carry `rate_mbit` Mbit/s in each direction; None for what it can."""
        for host in self.hosts:
            ends = [(host.namespace, host.device)]
            if len(self.hosts) > 2:  # several can send to one
                ends.append((host.switch, host.port))
            for namespace, device in ends:
                _run(limit_command(namespace, device, rate_mbit), may_fail=rate_mbit is None)

    def link_bytes(self) -> tuple[LinkBytes, ...]:
        """Return the counters of every host's link."""
        return tuple(_read_counters(host) for host in self.hosts)


@contextmanager
def host_network(count: int) -> Iterator[HostNetwork]:
    """Make `count` hosts, which end with the block.

    Raises:
        PlacementError: this process is not root, iproute2 is missing, or the kernel refuses.
    """
    check_possible()
    _remove_abandoned()
    prefix = f"dm{os.getpid()}"
    switch = f"{prefix}-switch"
    hosts = [Host(index, f"{prefix}-{index}", switch) for index in range(count)]
    try:
        for command in build_commands(hosts, switch):
            _run(command)
        for host in hosts:
            _set_tcp(host)
        yield HostNetwork(hosts)
    finally:
        for namespace in [*(host.namespace for host in hosts), switch]:
            _run(["ip", "netns", "del", namespace], may_fail=True)


def abandoned(namespaces: Iterable[str]) -> list[str]:
    """Return those of `namespaces` that a bench has made whose process is gone, killed before it
    could remove them."""
    made = ((name, re.match(r"dm(\d+)-", name)) for name in namespaces)
    return [name for name, match in made if match and not Path("/proc", match[1]).exists()]


def _remove_abandoned() -> None:
    listed = json.loads(_run(["ip", "-j", "netns"]) or "[]")
    for name in abandoned(entry["name"] for entry in listed):
        _run(["ip", "netns", "del", name], may_fail=True)


def check_possible() -> None:
    """Raise PlacementError, which says what is missing, unless hosts can be made here."""
    missing = []
    if os.geteuid() != 0:
        missing.append("root")
    missing += [f"the command {name}" for name in ("ip", "tc") if shutil.which(name) is None]
    if missing:
        raise PlacementError(
            f"hosts on one machine are network namespaces, which need {' and '.join(missing)}; "
            "run as root on Linux with iproute2 (Debian: apt-get install iproute2)"
        )


def build_commands(hosts: Sequence[Host], switch: str) -> list[list[str]]:
    """Return what makes `hosts` and plugs them into the switch."""
    commands = [
        ["ip", "netns", "add", switch],
        ["ip", "-n", switch, "link", "add", "bridge", "type", "bridge"],
        ["ip", "-n", switch, "link", "set", "bridge", "mtu", str(_MTU), "up"],
    ]
    for host in hosts:
        inside, outside = ["ip", "-n", host.namespace], ["ip", "-n", switch]
        commands += [
            ["ip", "netns", "add", host.namespace],
            [*inside, "link", "set", "lo", "up"],
            [
                *outside, "link", "add", host.port, "type", "veth",
                "peer", "name", host.device, "netns", host.namespace,
            ],
            [*inside, "addr", "add", f"{host.address}/24", "dev", host.device],
            [*inside, "link", "set", host.device, "mtu", str(_MTU), "up"],
            [*outside, "link", "set", host.port, "mtu", str(_MTU), "master", "bridge", "up"],
        ]  # fmt: skip
    return commands


def limit_command(namespace: str, device: str, rate_mbit: float | None) -> list[str]:
    """Return what limits what `device` sends to `rate_mbit` Mbit/s, or frees it."""
    if rate_mbit is None:
        return ["tc", "-n", namespace, "qdisc", "del", "dev", device, "root"]
    return [
        "tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf",
        "rate", f"{round(rate_mbit * 1000)}kbit", "burst", str(BURST_BYTES), "latency", _QUEUE,
    ]  # fmt: skip


@contextmanager
def inside(host: Host) -> Iterator[None]:
    """Let this thread, and the threads and processes that it starts, be on `host` in the block.

    Raises PlacementError when the kernel refuses.
    """
    with open("/proc/thread-self/ns/net", "rb") as before:
        _enter(Path("/run/netns") / host.namespace)
        try:
            yield
        finally:
            _set_namespace(before.fileno(), "the namespace before")


def _set_tcp(host: Host) -> None:
    for name, value in _TCP.items():
        setting = _SETTINGS / name
        try:
            with inside(host):
                setting.write_text(value)
        except OSError as error:
            raise PlacementError(
                f"{host.namespace}: cannot set {setting} to '{value}': {error.strerror}; the bench "
                "needs a kernel and a /proc/sys that let root set it in a network namespace"
            ) from error


def _enter(path: Path) -> None:
    with open(path, "rb") as file:
        _set_namespace(file.fileno(), str(path))


def _set_namespace(descriptor: int, name: str) -> None:
    # os.setns came with Python 3.12
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET) != 0:
        raise PlacementError(f"cannot enter {name}: {os.strerror(ctypes.get_errno())}")


def _read_counters(host: Host) -> LinkBytes:
    command = ["ip", "-n", host.namespace, "-s", "-j", "link", "show", "dev", host.device]
    (link,) = json.loads(_run(command))
    stats = link["stats64"]
    return LinkBytes(sent=stats["tx"]["bytes"], received=stats["rx"]["bytes"])


def _run(command: Sequence[str], *, may_fail: bool = False) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise PlacementError(f"'{' '.join(command)}' did not end: {error}") from error
    if done.returncode != 0 and not may_fail:
        raise PlacementError(f"'{' '.join(command)}' failed: {done.stderr.strip()}")
    return done.stdout
