"""A Ray cluster over hosts of this machine: one node on each, all its processes on one core."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import ray

from disagmoe.bench.hosts import Host, inside
from disagmoe.bench.quota import CpuGroup, cpu_group
from disagmoe.cluster.environment import environment, ray_variables, reread_environment
from disagmoe.cluster.local import temporary_folder
from disagmoe.cluster.printing import printing_to_log
from disagmoe.cluster.processes import end_survivors, tree
from disagmoe.cluster.signals import deferred, sigterm_handler_kept
from disagmoe.errors import PlacementError
from disagmoe.units import MIB

_PORT = 6379
_SLOTS = 8
"""CPUs that a node claims to have: only one of its workers computes at a time."""
_OBJECT_STORE_BYTES = 80 * MIB  # Ray takes no less than 75; only small messages go through it
_START_TIMEOUT_S = 60.0
_PATIENCE_S = 10.0
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Node:
    """One host as a Ray node."""

    host: Host
    core: int
    """The core that all its processes are pinned to."""
    group: CpuGroup
    process: "subprocess.Popen[bytes]"

    def cpu_s(self) -> dict[int, float]:
        """CPU seconds so far of each process of this node, by process id."""
        return {p.pid: sum(p.cpu_times()[:2]) for p in tree(self.process.pid)}


@contextmanager
def ray_nodes(
    hosts: Sequence[Host], resources: Sequence[Mapping[str, float]]
) -> Iterator[list[Node]]:
    """Start a Ray node on each of `hosts` with its custom `resources`, join it from the first host,
    and end all of it with the block.

    Raises:
        PlacementError: a node does not start.
        ConfigError: RAY_TMPDIR is too long.
    """
    head, cores = hosts[0], sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        stack.enter_context(inside(head))
        stack.enter_context(environment(ray_variables(threads=1)))
        nodes = []
        for host, own in zip(hosts, resources, strict=True):
            group = stack.enter_context(cpu_group(host.namespace))
            core = cores[host.index % len(cores)]
            process = stack.enter_context(_process(host, head, core, group, own, Path(folder)))
            nodes.append(Node(host, core, group, process))
            if host is head:
                _wait_for_port(host.address, process, Path(folder))
        stack.enter_context(_joined(head.address))
        _wait_for_nodes(len(hosts), Path(folder))
        yield nodes


def start_command(
    host: Host, head: Host, core: int, resources: Mapping[str, float], folder: Path
) -> list[str]:
    """Return what starts the node of `host` and stays with it; the others join that of `head`."""
    where = ["--head", f"--port={_PORT}", "--include-dashboard=false", f"--temp-dir={folder}"]
    if host != head:
        where = [f"--address={head.address}:{_PORT}"]
    return [
        "taskset", "--cpu-list", str(core), "ip", "netns", "exec", host.namespace,
        sys.executable, "-m", "ray.scripts.scripts", "start", *where, "--block",
        f"--node-ip-address={host.address}", f"--num-cpus={_SLOTS}", "--num-gpus=0",
        f"--resources={json.dumps(dict(resources))}",
        f"--object-store-memory={_OBJECT_STORE_BYTES}", "--disable-usage-stats",
    ]  # fmt: skip


@contextmanager
def _process(
    host: Host, head: Host, core: int, group: CpuGroup, resources: Mapping[str, float], folder: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    command = start_command(host, head, core, resources, folder)
    with (folder / f"start-{host.index}.log").open("wb") as log:
        process = subprocess.Popen(
            # joins its cgroup first: `ip netns exec` hides /sys
            ["sh", "-c", f'{group.join}; exec "$@"', "sh", *command],
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with deferred():
            end_survivors(tree(process.pid), _PATIENCE_S)
            process.wait(_PATIENCE_S)


@contextmanager
def _joined(address: str) -> Iterator[None]:
    with printing_to_log():
        try:
            _join(address)
            yield
        finally:
            ray.shutdown()
            reread_environment()


def _join(address: str) -> None:
    try:
        with sigterm_handler_kept():
            ray.init(address=f"{address}:{_PORT}", log_to_driver=False, _node_ip_address=address)
    except (RuntimeError, ConnectionError, TimeoutError) as error:
        raise PlacementError(f"cannot join the Ray at {address}: {error}") from error


def _wait_for_port(address: str, process: "subprocess.Popen[bytes]", folder: Path) -> None:
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while True:
        try:
            socket.create_connection((address, _PORT), timeout=1.0).close()
        except OSError:
            if process.poll() is None and time.monotonic() < deadline_s:
                time.sleep(_POLL_S)
                continue
            raise PlacementError(
                f"Ray does not start at {address}: {_last_line(folder / 'start-0.log')}"
            ) from None
        return


def _wait_for_nodes(count: int, folder: Path) -> None:
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while (alive := sum(node["Alive"] for node in ray.nodes())) < count:
        if time.monotonic() > deadline_s:
            raise PlacementError(
                f"{alive} of {count} Ray nodes have joined within {_START_TIMEOUT_S:g} s: "
                f"{_last_line(folder / f'start-{count - 1}.log')}"
            )
        time.sleep(_POLL_S)


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it has printed nothing"
