"""The layouts that `disagmoe invariance` tries."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from disagmoe.config.load import override
from disagmoe.config.parallel import COLOCATED
from disagmoe.config.run import RunConfig
from disagmoe.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One layout: micro-batches per step, p, M, N, depth, schedule, and what carries the rows."""

    micro_batches: int
    groups: int = 1
    attention: int = 1
    experts: int = 1
    in_flight: int = 1
    schedule: str = "af_pipe"
    dedupe: str = "rank"
    workers_per_host: int = 0
    aux_scope: str = "sequence"
    residual: str = "auto"
    rings: int = 1
    split_backward: bool = False
    attention_shares: tuple[float, ...] = ()
    expert_shares: tuple[float, ...] = ()
    transport: str = "inproc"

    @property
    def name(self) -> str:
        """Short name, as `mb4 p2 M3 N2 k4 af_pipe gloo`."""
        extra = [self.schedule]
        extra += ["no-dedupe"] if self.dedupe == "none" else []
        extra += [f"host{self.workers_per_host}"] if self.dedupe == "node" else []
        extra += [f"aux-{self.aux_scope}".replace("_", "-")] if self.aux_scope != "sequence" else []
        extra += [self.residual] if self.residual != "auto" else []
        extra += [f"R{self.rings}"] if self.rings > 1 else []
        extra += ["split-backward"] if self.split_backward else []
        for side, shares in (("M", self.attention_shares), ("N", self.expert_shares)):
            extra += [f"{side}{':'.join(f'{share:g}' for share in shares)}"] if shares else []
        return (
            f"mb{self.micro_batches} p{self.groups} M{self.attention} N{self.experts} "
            f"k{self.in_flight} {' '.join(extra)} {self.transport}"
        )

    @property
    def twin(self) -> tuple[object, ...]:
        """Layouts with equal twins must give equal bits: depth, schedule, a split backward and
        transport are free."""
        return (
            self.micro_batches,
            self.groups,
            self.attention,
            self.experts,
            self.dedupe,
            self.workers_per_host,
            self.aux_scope,
            self.residual,
            self.rings,
            self.attention_shares,
            self.expert_shares,
            # a fused residual shares norms among other workers where both roles are on the same
            self.residual != "direct" and self.groups > 1 and self.schedule in COLOCATED,
        )

    def apply(self, config: RunConfig) -> RunConfig:
        """Return `config` in this layout. Raises ConfigError where the model does not fit."""
        batch = -(-config.train.global_batch_size // self.rings)
        size = -(-batch // self.micro_batches)
        count = -(-batch // size)  # 3 where 4 are asked for of 6 sequences
        return override(
            config,
            [
                f"parallel.micro_batch_size={size}",
                f"parallel.groups={self.groups}",
                f"parallel.attention_workers={self.attention}",
                f"parallel.expert_workers={self.experts}",
                f"parallel.in_flight={min(self.in_flight, count)}",
                f"parallel.schedule={self.schedule}",
                f"parallel.dedupe={self.dedupe}",
                f"parallel.workers_per_host={self.workers_per_host}",
                f"parallel.residual={self.residual}",
                f"parallel.rings={self.rings}",
                f"parallel.split_backward={'true' if self.split_backward else 'false'}",
                f"parallel.attention_shares={list(self.attention_shares)}",
                f"parallel.expert_shares={list(self.expert_shares)}",
                "parallel.profile=off",
                f"train.loss.aux_scope={self.aux_scope}",
            ],
        )


def cases() -> list[Case]:
    """Every value of every dimension, many pairs of them, and twins for the promise of bits."""
    grid = [
        Case(micro_batches=1),
        Case(micro_batches=2, in_flight=2),
        Case(micro_batches=4, in_flight=4),
        Case(micro_batches=4, in_flight=1, schedule="serial"),
        Case(micro_batches=4, in_flight=2, dedupe="none", experts=3),
        Case(micro_batches=1, attention=2, experts=2),
        Case(micro_batches=2, attention=2, experts=3, in_flight=2),
        Case(micro_batches=4, attention=2, experts=3, in_flight=4),
        Case(micro_batches=4, attention=2, experts=3, schedule="serial"),
        Case(micro_batches=4, attention=3, experts=1, in_flight=2),
        Case(micro_batches=4, attention=3, experts=2, in_flight=4),
        Case(micro_batches=4, groups=2, in_flight=4),
        Case(micro_batches=4, groups=2, schedule="serial"),
        Case(micro_batches=4, groups=2, attention=2, experts=2, in_flight=4),
        Case(micro_batches=4, groups=2, attention=2, experts=2, in_flight=2),
        Case(
            micro_batches=2,
            groups=2,
            attention=3,
            experts=2,
            in_flight=2,
            attention_shares=(1, 3, 2),
            expert_shares=(1, 3),
        ),
        Case(micro_batches=4, groups=2, attention=2, experts=3, in_flight=4, dedupe="none"),
        Case(micro_batches=4, groups=3, in_flight=4),
        Case(micro_batches=2, groups=3, attention=3, experts=3, in_flight=2),
        Case(micro_batches=4, groups=4, in_flight=4),
        Case(micro_batches=4, attention=2, experts=3, in_flight=4, split_backward=True),
        Case(micro_batches=4, groups=2, attention=2, experts=2, in_flight=4, split_backward=True),
        Case(micro_batches=4, attention=2, experts=2, in_flight=4, aux_scope="micro_batch"),
        Case(micro_batches=4, groups=2, attention=3, in_flight=4, aux_scope="micro_batch"),
        Case(micro_batches=4, in_flight=1, aux_scope="micro_batch"),
        Case(micro_batches=4, attention=2, experts=3, in_flight=4, aux_scope="global"),
        Case(micro_batches=4, groups=2, attention=2, in_flight=4, aux_scope="global"),
    ]
    residuals = [
        Case(micro_batches=4, groups=2, in_flight=4, residual="direct"),
        Case(micro_batches=4, groups=2, attention=2, experts=3, in_flight=4, residual="direct"),
        Case(micro_batches=2, groups=3, attention=2, experts=2, in_flight=2, residual="direct"),
        Case(micro_batches=2, groups=4, in_flight=2, residual="direct", split_backward=True),
    ]
    rings = [
        Case(micro_batches=2, rings=2, in_flight=2),
        Case(micro_batches=2, rings=3, attention=2, experts=2, in_flight=2),
        Case(micro_batches=2, rings=2, groups=2, attention=2, in_flight=2, attention_shares=(1, 9)),
        Case(micro_batches=2, rings=2, groups=2, attention=2, in_flight=2, aux_scope="global"),
    ]
    colocated = [
        Case(micro_batches=4, schedule="ep_1f1b"),
        Case(micro_batches=4, attention=2, experts=2, schedule="ep_1f1b"),
        Case(micro_batches=4, attention=2, experts=2, in_flight=2, schedule="ep_overlap"),
        Case(micro_batches=4, groups=2, attention=2, experts=2, in_flight=4, schedule="ep_1f1b"),
        Case(micro_batches=4, groups=2, attention=2, experts=2, in_flight=4, schedule="ep_overlap"),
        Case(micro_batches=2, groups=2, in_flight=2, schedule="ep_overlap", residual="direct"),
        Case(
            micro_batches=2,
            groups=4,
            in_flight=2,
            schedule="ep_overlap",
            residual="direct",
            split_backward=True,
        ),
        Case(micro_batches=2, groups=4, attention=2, experts=2, schedule="ep_1f1b"),
        Case(
            micro_batches=2,
            rings=2,
            groups=2,
            attention=2,
            experts=2,
            in_flight=2,
            schedule="ep_overlap",
            attention_shares=(2, 5),
            expert_shares=(5, 2),
        ),
        Case(
            micro_batches=4,
            attention=2,
            experts=2,
            in_flight=2,
            schedule="ep_overlap",
            aux_scope="micro_batch",
        ),
        Case(
            micro_batches=4,
            groups=2,
            attention=2,
            experts=2,
            in_flight=4,
            schedule="ep_1f1b",
            aux_scope="global",
        ),
    ]
    # hosts of two expert workers; the last one may have one alone
    two_hops = [
        Case(
            micro_batches=4,
            groups=groups,
            attention=attention,
            experts=experts,
            in_flight=4,
            residual=residual,
            dedupe="node",
            workers_per_host=2,
        )
        for groups, attention, experts, residual in (
            (1, 2, 4, "auto"),
            (1, 1, 3, "auto"),
            (2, 2, 4, "fused"),
            (2, 2, 4, "direct"),
            (2, 3, 3, "fused"),
        )
    ]
    two_hops += [
        replace(two_hops[0], schedule="serial", in_flight=1),
        replace(two_hops[2], split_backward=True, expert_shares=(1, 3, 2, 1)),
        replace(two_hops[2], rings=2, micro_batches=2, in_flight=2, attention_shares=(1, 9)),
        replace(two_hops[0], attention=4, schedule="ep_overlap"),
        replace(two_hops[3], attention=3, experts=3, schedule="ep_1f1b", in_flight=2),
        replace(two_hops[0], dedupe="rank", workers_per_host=0),
        replace(two_hops[2], dedupe="none", workers_per_host=0),
        replace(two_hops[0], transport="gloo"),
        replace(two_hops[2], attention=1, experts=2, transport="gloo"),
    ]
    over_gloo = [
        Case(micro_batches=4, in_flight=4, transport="gloo"),
        Case(micro_batches=4, attention=2, experts=3, in_flight=4, transport="gloo"),
        Case(micro_batches=4, groups=2, in_flight=4, transport="gloo"),
        Case(
            micro_batches=4,
            attention=2,
            experts=2,
            in_flight=2,
            aux_scope="micro_batch",
            transport="gloo",
        ),
        Case(micro_batches=2, rings=2, in_flight=2, transport="gloo"),
        Case(
            micro_batches=4,
            attention=2,
            experts=2,
            in_flight=2,
            schedule="ep_overlap",
            transport="gloo",
        ),
        Case(micro_batches=4, groups=2, in_flight=4, residual="direct", transport="gloo"),
    ]
    return grid + residuals + rings + colocated + two_hops + over_gloo


def fitting(config: RunConfig, tried: Sequence[Case]) -> tuple[list[Case], dict[Case, str]]:
    """Divide layouts into those that the model of `config` can have, and the others with the
    reason: five groups for four layers, say.

    Raises ConfigError where no layout fits.
    """
    kept: list[Case] = []
    others: dict[Case, str] = {}
    for case in tried:
        try:
            case.apply(config)
        except ConfigError as error:
            others[case] = "; ".join(error.problems)
        else:
            kept.append(case)
    if not kept:
        raise ConfigError(list(dict.fromkeys(others.values())))
    return kept, others
