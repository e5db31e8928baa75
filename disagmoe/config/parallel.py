"""How the network is divided over workers, and in which order they work."""

from typing import Literal

from pydantic import Field

from disagmoe.config.base import Section
from disagmoe.config.costs import CostsConfig

ScheduleName = Literal["af_pipe", "ep_1f1b", "ep_overlap", "serial"]
DedupeName = Literal["rank", "none", "node"]
Recompute = Literal["none", "attention", "experts", "all"]

FIRST_PROFILED, PROFILED = 1, 2
"""With a profile: the first measured step, from 0 (the very first is slower for reasons of its
own), and how many there are."""

COLOCATED = frozenset({"ep_1f1b", "ep_overlap"})
"""Schedules of the colocated layouts, in which the same workers have attention and experts."""


class ParallelConfig(Section):
    """Groups on the ring, workers per group, micro-batches and the schedule."""

    layout: Literal["fixed", "auto"] = "fixed"
    """`fixed`: as this section has it; `auto`: `disagmoe plan` divides as many workers, on the
    machines of section `hardware`, and chooses `schedule`, `in_flight` and `micro_batch_size`."""
    groups: int = Field(default=1, ge=1)
    """Attention groups on the ring, and as many expert groups (p). Group g owns the layers
    g, g+p, g+2p, ...; at most `model.layers`."""
    attention_workers: int = Field(default=1, ge=1)
    """Workers in each attention group (M); each handles its part of every micro-batch."""
    expert_workers: int = Field(default=1, ge=1)
    """Workers in each expert group (N); each holds its share of the experts of the group's layers;
    at most `model.experts`."""
    attention_shares: list[float] = Field(default_factory=list)
    """Weights by which each micro-batch is divided among the attention workers of a group, one per
    worker, for unequal hosts; whole sequences, so that some may get none. [] divides evenly, until
    `parallel.profile` finds that other shares shorten the slowest worker's time by a tenth."""
    expert_shares: list[float] = Field(default_factory=list)
    """Weights by which a layer's experts are divided among the expert workers of a group, one per
    worker, for unequal hosts; each gets at least one. [] divides evenly."""
    rings: int = Field(default=1, ge=1)
    """Copies of the whole ring that train in data parallel (R); each takes its part of every global
    batch, and gradients and optimizer states are shared out among the copies."""
    tensor: Literal[1] = 1
    """Workers that share one layer's matrices; reserved, only 1 for now."""
    context: Literal[1] = 1
    """Workers that share one sequence; reserved, only 1 for now."""
    micro_batch_size: int = Field(default=1, ge=1)
    """Sequences per micro-batch, over all workers of an attention group. The last micro-batch of a
    step is smaller when this does not divide the ring's part of `train.global_batch_size`."""
    in_flight: int = Field(default=0, ge=0)
    """Micro-batches between their first forward and their last backward at any time;
    0 takes half as many again as keep the ring busy by `parallel.costs` (4.5 per group with the
    default costs and the sides apart), or all where there are fewer, once more when costs are
    measured; `serial`, and `ep_1f1b` with one group, have 1."""
    max_in_flight: int = Field(default=0, ge=0)
    """Most micro-batches that may be in flight, where memory is short: each holds its activations
    until its backward. 0 sets no limit."""
    schedule: ScheduleName = "af_pipe"
    """`af_pipe`: attention and experts apart, micro-batches overlap on the ring; `serial`: the
    same, one after the other, for debugging; `ep_1f1b`: both on the same workers, all-to-alls
    waited for; `ep_overlap`: both on the same workers, all-to-alls behind compute."""
    residual: Literal["auto", "local", "direct", "fused"] = "auto"
    """How the residual stream reaches the next layer: `local` stays on the worker (one group only),
    `direct` sends it to the next attention group, `fused` lets it travel with the rows to the
    experts, at no extra bytes; `auto` takes `local` for one group, else `fused`, or `direct` with
    shared experts on the attention workers."""
    dedupe: DedupeName = "rank"
    """Rows on the wire: `rank` sends a token once to each expert worker, `none` once to each of its
    experts (for comparison), `node` once to each host of expert workers, where a gateway passes it
    on and adds up what comes back."""
    workers_per_host: int = Field(default=0, ge=0)
    """Expert workers of a group on each host, in rank order, for `dedupe = "node"`; 0 takes
    `cluster.expert.workers_per_node` (of `cluster.attention` where the sides share workers), or
    without that `hardware.workers_per_node`."""
    dispatch: Literal["same", "fp8"] = "same"
    """Type in which rows travel to the experts: the `same` as they are computed in, or `fp8` with a
    scale per 128 numbers, as in DeepSeek-V3 (simulated only)."""
    shared_experts: Literal["attention", "expert"] = "attention"
    """Side of the experts that all tokens visit: on the `attention` workers, each for its own
    tokens, or on the `expert` workers, each for the tokens whose first choice it holds."""
    recompute: Recompute = "none"
    """Side whose activations are computed again for the backward instead of kept; where tokens go
    is kept in any case."""
    split_backward: bool = False
    """Whether experts send the gradients of their rows first and compute those of their parameters
    later, where they would wait otherwise; shortens the end of a step, and keeps activations for
    longer."""
    profile: Literal["auto", "on", "off"] = "auto"
    """Whether the second and third step are measured, to go on with the `costs` found, the
    `in_flight` that they ask for where it is 0, and `attention_shares` that fit them where those
    are []; the run's `config.toml` then has them. `auto`: `on` for 10 steps or more with default
    costs, unless micro-batches run one by one."""
    costs: CostsConfig = CostsConfig()
    """What the schedule takes ops and transfers to cost."""

    @property
    def attention_weights(self) -> list[float]:
        """`attention_shares`, or equal ones."""
        return self.attention_shares or [1.0] * self.attention_workers

    @property
    def expert_weights(self) -> list[float]:
        """`expert_shares`, or equal ones."""
        return self.expert_shares or [1.0] * self.expert_workers

    def profiled_steps(self, first_step: int) -> range:
        """The steps that are measured for `profile` by workers whose first one is `first_step`;
        none for `auto`, which is resolved first."""
        if self.profile != "on":
            return range(first_step, first_step)
        begin = first_step + FIRST_PROFILED
        return range(begin, begin + PROFILED)

    @property
    def one_by_one(self) -> bool:
        """Whether the schedule runs one micro-batch after the other."""
        return self.schedule == "serial" or (self.schedule == "ep_1f1b" and self.groups == 1)

    @property
    def workers(self) -> int:
        """Workers of the whole run."""
        per_group = self.attention_workers
        if self.schedule not in COLOCATED:
            per_group += self.expert_workers
        return self.rings * self.groups * per_group

    @property
    def worker_names(self) -> list[str]:
        """Names of all workers, as the schedule's layout writes them, in its order."""
        colocated = self.schedule in COLOCATED
        sides = {"C" if colocated else "A": self.attention_workers}
        if not colocated:
            sides["F"] = self.expert_workers
        return [
            f"{f'r{ring}.' if ring else ''}{side}{group}.{rank}"
            for ring in range(self.rings)
            for side, workers in sides.items()
            for group in range(self.groups)
            for rank in range(workers)
        ]

    @property
    def summary(self) -> str:
        """The division in words, as `2 x (4 attention + 2 expert) workers`."""
        rings = f"{self.rings} rings of " if self.rings > 1 else ""
        if self.schedule in COLOCATED:
            return f"{rings}{self.groups} x {self.attention_workers} colocated workers"
        return (
            f"{rings}{self.groups} x ({self.attention_workers} attention + "
            f"{self.expert_workers} expert) workers"
        )


def micro_batches(global_batch_size: int, micro_batch_size: int, rings: int = 1) -> int:
    """Return how many micro-batches each ring has in a step; the last one may be smaller, or empty
    where rings do not divide the batch."""
    longest = -(-global_batch_size // rings)
    return -(-longest // micro_batch_size)
