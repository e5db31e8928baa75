"""What one step of one system shows: time, what became of it, bytes on the links, CPU time."""

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import ray  # noqa: F401 - makes its own copy of psutil importable, in ray/thirdparty_files

# isort: split
import psutil

from disagmoe.actors.merge import add_hops
from disagmoe.bench.hosts import HostNetwork, LinkBytes
from disagmoe.bench.limits import Load
from disagmoe.bench.raynodes import Node
from disagmoe.bench.rig import Rig
from disagmoe.runtime.report import HopCounts
from disagmoe.schedule.accounting import BUSY, Kind, Shares


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuSeconds:
    """CPU time of all hosts during a step, by what it was spent on."""

    program: float
    """The threads that execute programs: compute, and handing over sends."""
    transport: float
    """Everything else in the worker processes: receives, gloo, calls from the driver."""
    ray: float
    """Ray's own processes, and workers that are idle meanwhile."""
    driver: float
    """This process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One step."""

    step_s: float
    loss: float
    ops_s: tuple[float, ...]
    """Seconds that the worker of each host spends on the ops of its program, in the order of
    hosts."""
    rest_s: tuple[float, ...]
    """Seconds that it spends on reading data and on its update."""
    shares: tuple[Shares, ...]
    """What became of each worker's time, in the order of hosts."""
    links: tuple[LinkBytes, ...]
    cpu: CpuSeconds
    memory_bytes: Mapping[str, int]
    """Largest memory of each worker's process so far."""
    hops: Mapping[str, HopCounts]
    """Rows and payloads between attention and experts, of all workers."""

    @property
    def link_bytes(self) -> float:
        """The most that a link has carried in one direction."""
        return max(max(link.sent, link.received) for link in self.links)


def observe(rig: Rig, network: HostNetwork, nodes: Sequence[Node]) -> Sample:
    """Do one step of `rig` and watch it."""
    meter = CpuMeter(rig.pids, nodes)
    before = network.link_bytes()
    done = rig.step()
    after = network.link_bytes()
    addresses = [host.address for host in network.hosts]
    workers = sorted(done.reports, key=lambda worker: addresses.index(rig.hosts[worker]))
    seconds = [within(done.reports[worker].seconds, done.elapsed_s) for worker in workers]
    shares = tuple(Shares.of(kinds) for kinds in seconds)
    return Sample(
        step_s=done.elapsed_s,
        loss=done.reports[workers[0]].loss,
        ops_s=tuple(kinds.get(Kind.COMPUTE, 0.0) for kinds in seconds),
        rest_s=tuple(
            sum(kinds.get(kind, 0.0) for kind in BUSY - {Kind.COMPUTE}) for kinds in seconds
        ),
        shares=shares,
        links=tuple(late - early for early, late in zip(before, after, strict=True)),
        cpu=meter.read(),
        memory_bytes={name: one.peak_memory_bytes for name, one in done.reports.items()},
        hops=add_hops(report.hops for report in done.reports.values()),
    )


def is_pinned(nodes: Sequence[Node], rig: Rig) -> bool:
    """Whether every worker can run on its host's core only."""
    core_of = {node.host.address: node.core for node in nodes}
    return all(
        os.sched_getaffinity(pid) == {core_of[rig.hosts[worker]]}
        for worker, pid in rig.pids.items()
    )


def within(seconds: Mapping[str, float], step_s: float) -> dict[str, float]:
    """Return `seconds` by kind without the pause before the step, which began when the worker had
    finished the one before."""
    pause_s = max(0.0, sum(seconds.values()) - step_s)
    idle_s = max(0.0, seconds.get(Kind.IDLE, 0.0) - pause_s)
    return {**seconds, Kind.IDLE: idle_s}


class CpuMeter:
    """CPU time since it was made."""

    def __init__(self, workers: Mapping[str, int], nodes: Sequence[Node]) -> None:
        self._workers = tuple(workers.values())
        self._nodes = nodes
        self._driver_s = time.process_time()
        self._nodes_s = self._all_nodes()
        self._threads_s = self._all_threads()

    def read(self) -> CpuSeconds:
        """Return what has been spent."""
        threads = [
            [end - began.get(thread, 0.0) for thread, end in ended.items()]
            for began, ended in zip(self._threads_s, self._all_threads(), strict=True)
        ]
        program = sum(max(spent) for spent in threads)
        workers = sum(sum(spent) for spent in threads)
        nodes = sum(
            end - self._nodes_s.get(process, 0.0) for process, end in self._all_nodes().items()
        )
        return CpuSeconds(
            program=program,
            transport=workers - program,
            ray=max(0.0, nodes - workers),
            driver=time.process_time() - self._driver_s,
        )

    def _all_nodes(self) -> dict[int, float]:
        return {pid: spent for node in self._nodes for pid, spent in node.cpu_s().items()}

    def _all_threads(self) -> list[dict[int, float]]:
        return [
            {
                thread.id: thread.user_time + thread.system_time
                for thread in psutil.Process(pid).threads()
            }
            for pid in self._workers
        ]


def load_of(samples: Sequence[Sample]) -> Load:
    """Return what a step computes and sends, by medians over `samples`."""
    return Load(
        ops_s=_by_host([sample.ops_s for sample in samples]),
        rest_s=_by_host([sample.rest_s for sample in samples]),
        link_bytes=statistics.median(sample.link_bytes for sample in samples),
    )


def _by_host(rows: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    return tuple(map(statistics.median, zip(*rows, strict=True)))


def medians(values: Sequence[Shares | CpuSeconds]) -> dict[str, float]:
    """Return the median of every field of `values`, which are of one type, by its name."""
    rows = [asdict(value) for value in values]
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}
