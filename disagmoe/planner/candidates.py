"""Every division of the machines that the search looks at.

With one kind of machine all workers may have either role. With two kinds each side keeps as many
workers as the config gives it, in any number of groups and rings.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from disagmoe.config.cluster import ClusterConfig, SideConfig
from disagmoe.config.hosts import workers_per_host
from disagmoe.config.parallel import (
    COLOCATED,
    DedupeName,
    ParallelConfig,
    Recompute,
    ScheduleName,
)
from disagmoe.config.phrases import divisors
from disagmoe.config.rules import problems
from disagmoe.config.run import RunConfig

COLOCATED_SCHEDULES: tuple[ScheduleName, ...] = ("ep_1f1b", "ep_overlap")
SEQUENCES = (1, 2, 4)
"""Sequences of a micro-batch per attention worker."""
LENDING = (1.0, 4 / 3, 2.0)
"""Network cards per worker of a side whose hosts are only partly filled: 6 or 4 workers on a host
with 8 cards. Those hosts' other workers are idle."""


_AGAIN: dict[Recompute, str] = {
    "none": "",
    "attention": ", attention recomputed",
    "experts": ", experts recomputed",
    "all": ", all recomputed",
}
_MORE: dict[Recompute, tuple[Recompute, ...]] = {
    "none": ("attention", "experts", "all"),
    "attention": ("all",),
    "experts": ("all",),
    "all": (),
}
"""What keeps less of the activations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """One way to divide the machines, before the number of micro-batches in flight."""

    schedule: ScheduleName
    rings: int
    groups: int
    attention_workers: int
    expert_workers: int
    micro_batch_size: int
    attention_nics: float
    expert_nics: float
    recompute: Recompute = "none"
    attention_per_node: int = 0
    """Workers on each host whose others lend their cards; 0 where hosts are full."""
    expert_per_node: int = 0
    dedupe: DedupeName = "rank"

    def of(self, config: RunConfig, in_flight: int) -> RunConfig:
        """`config` divided like this."""
        parallel = config.parallel
        beside = config.model.shared_width > 0 and parallel.shared_experts == "attention"
        fused = parallel.residual in ("auto", "local", "fused") and not beside
        update: dict[str, object] = {
            "schedule": self.schedule,
            "rings": self.rings,
            "groups": self.groups,
            "attention_workers": self.attention_workers,
            "expert_workers": self.expert_workers,
            "micro_batch_size": self.micro_batch_size,
            "attention_shares": [],
            "expert_shares": [],
            "in_flight": in_flight,
            "max_in_flight": 0,
            "residual": "local" if self.groups == 1 else "fused" if fused else "direct",
            "recompute": self.recompute,
            "layout": "fixed",
            "dedupe": self.dedupe,
            "workers_per_host": parallel.workers_per_host if self.dedupe == "node" else 0,
        }
        nics = {"attention_nics": self.attention_nics, "expert_nics": self.expert_nics}
        if self.schedule in COLOCATED:
            nics["mixed_nodes"] = False
        return config.model_copy(
            update={
                "parallel": parallel.model_copy(update=update),
                "hardware": config.hardware.model_copy(update=nics),
                "cluster": self._cluster(config),
            }
        )

    def _cluster(self, config: RunConfig) -> ClusterConfig:
        """Nodes on which placement gives each worker as many network cards as are planned: GPUs
        that a run reserves without a worker lend those next to them."""
        cluster, per_host = config.cluster, config.hardware.workers_per_node
        one_host = cluster.mode == "local" and config.parallel.workers <= per_host
        if one_host or cluster.address == "local":
            return cluster

        def nodes(given: SideConfig, lending: int) -> SideConfig:
            if lending:
                update = {"workers_per_node": lending, "gpus_per_node": per_host}
                return given.model_copy(update=update)
            if given.workers_per_node or cluster.device == "cpu":
                return given
            return given.model_copy(update={"workers_per_node": per_host})

        colocated = self.schedule in COLOCATED
        return cluster.model_copy(
            update={
                "mode": "cluster",
                "attention": nodes(cluster.attention, self.attention_per_node),
                "expert": (
                    SideConfig() if colocated else nodes(cluster.expert, self.expert_per_node)
                ),
            }
        )

    @property
    def summary(self) -> str:
        """The division in words."""
        words = ParallelConfig(
            schedule=self.schedule,
            rings=self.rings,
            groups=self.groups,
            attention_workers=self.attention_workers,
            expert_workers=self.expert_workers,
        ).summary
        return words + _AGAIN[self.recompute]

    @property
    def with_less_memory(self) -> "tuple[Division, ...]":
        """The same, with more of the activations computed again."""
        return tuple(replace(self, recompute=more) for more in _MORE[self.recompute])


def divisions(config: RunConfig) -> tuple[Division, ...]:
    """All divisions of the workers of `config` that break no rule, each with all ways to send rows
    that differ there. Rows once for each expert are for comparison: they stay where they are asked
    for, and are no choice else."""
    return tuple(
        replace(one, dedupe=way)
        for one in _all(config)
        if not problems(one.of(config, 0))
        for way in ways(config, one)
    )


def ways(config: RunConfig, division: Division) -> tuple[DedupeName, ...]:
    """How rows may be sent in `division`: once to each worker, and once to each host where a host
    has several expert workers of a group."""
    if config.parallel.dedupe == "none":
        return ("none",)
    two_hops = replace(division, dedupe="node").of(config, 0)
    shared = min(workers_per_host(two_hops), division.expert_workers) > 1
    return ("rank", "node") if shared and not problems(two_hops) else ("rank",)


def _all(config: RunConfig) -> Iterator[Division]:
    if two_kinds(config):
        yield from _split_of_two_kinds(config)
        return
    for rings, groups, workers in _rings(config.parallel.workers):
        yield from _splits(config, rings, groups, workers)
        for schedule in COLOCATED_SCHEDULES:
            for size in SEQUENCES:
                yield Division(
                    schedule=schedule,
                    rings=rings,
                    groups=groups,
                    attention_workers=workers,
                    expert_workers=workers,
                    micro_batch_size=size * workers,
                    attention_nics=config.hardware.attention_nics,
                    expert_nics=config.hardware.expert_nics,
                    recompute=config.parallel.recompute,
                )


def two_kinds(config: RunConfig) -> bool:
    """Whether attention and experts have machines of their own."""
    machines = config.hardware.attention_machine, config.hardware.expert_machine
    return config.parallel.schedule not in COLOCATED and machines[1] not in ("same", machines[0])


def _rings(workers: int) -> Iterator[tuple[int, int, int]]:
    """Rings, groups, and workers of one pair of groups."""
    for rings in divisors(workers):
        for groups in divisors(workers // rings):
            yield rings, groups, workers // rings // groups


def _splits(config: RunConfig, rings: int, groups: int, workers: int) -> Iterator[Division]:
    asked = config.hardware
    per_host = asked.workers_per_node
    for attention in range(1, workers):
        for lend_a, lend_f in _lending(attention, workers - attention, per_host):
            own = int(attention / lend_a), int((workers - attention) / lend_f)
            for size in SEQUENCES:
                yield Division(
                    schedule="af_pipe",
                    rings=rings,
                    groups=groups,
                    attention_workers=own[0],
                    expert_workers=own[1],
                    micro_batch_size=size * own[0],
                    attention_nics=asked.attention_nics * attention / own[0],
                    expert_nics=asked.expert_nics * (workers - attention) / own[1],
                    recompute=config.parallel.recompute,
                    attention_per_node=round(per_host / lend_a) if lend_a > 1 else 0,
                    expert_per_node=round(per_host / lend_f) if lend_f > 1 else 0,
                )


def _lending(attention: int, experts: int, per_host: int) -> Iterator[tuple[float, float]]:
    """Cards per worker of both sides: more than one each only where hosts are whole."""
    yield 1.0, 1.0
    if per_host == 1 or attention % per_host or experts % per_host:
        return
    for lend in LENDING[1:]:
        yield lend, 1.0
        yield 1.0, lend


def _split_of_two_kinds(config: RunConfig) -> Iterator[Division]:
    parallel, asked = config.parallel, config.hardware
    copies = parallel.rings * parallel.groups
    attention, experts = copies * parallel.attention_workers, copies * parallel.expert_workers
    for rings in divisors(attention):
        for groups in divisors(attention // rings):
            if experts % (rings * groups):
                continue
            own = attention // rings // groups
            for size in SEQUENCES:
                yield Division(
                    schedule="af_pipe",
                    rings=rings,
                    groups=groups,
                    attention_workers=own,
                    expert_workers=experts // rings // groups,
                    micro_batch_size=size * own,
                    attention_nics=asked.attention_nics,
                    expert_nics=asked.expert_nics,
                    recompute=parallel.recompute,
                )
