"""The paper's cluster and layouts, as configs of ours.

Hosts of 8 H800 with 8 network cards of 400 Gbit/s each; of the paper's 8 to 16 hosts we take 8: 64
workers as 2 pairs of 16 + 16, and for the opponents as 4 stages of 16, experts in parallel over two
hosts.
What no source tells is taken to be: one sequence per attention worker and micro-batch; 8 sequences
per worker and step (as Megatron-MoE-ModelZoo has), 16 micro-batches per group; routing balanced;
bf16; nothing computed again; one row per token and expert (the paper's volumes are k H). LM head
and embedding are left out of every system, since no source tells who places them where; `head`
brings them back.
"""

from dataclasses import dataclass, replace
from typing import Literal

from disagmoe.config.costs import CostsConfig, ring_depth
from disagmoe.config.hardware import HardwareConfig
from disagmoe.config.model import ModelConfig
from disagmoe.config.parallel import ParallelConfig
from disagmoe.config.run import RunConfig
from disagmoe.config.starter import STARTER
from disagmoe.costs.scenario import scenario_of
from disagmoe.costs.times import StepTimes
from disagmoe.schedule.from_config import programs_for

CalibrationName = Literal["h800-kernel", "h800-paperfit", "h800-paperstep"]
CALIBRATIONS: tuple[CalibrationName, ...] = ("h800-paperfit", "h800-paperstep", "h800-kernel")
SEQUENCES_PER_WORKER = 8
"""In a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One model at one length on one cluster."""

    model: ModelConfig
    length: int
    calibration: CalibrationName
    pairs: int = 2
    """Pairs of groups (p); opponents have twice as many stages."""
    side: int = 16
    """Workers of a group where both sides are equal, and of an opponent's stage: its expert
    parallelism."""
    dedupe: Literal["none", "rank", "node"] = "none"
    dispatch: Literal["same", "fp8"] = "same"
    residual: Literal["fused", "direct"] = "fused"
    split_backward: bool = False
    mixed_nodes: bool = False
    nic_speed: float = 1.0
    head: bool = False
    """Whether LM head and embedding count: ours are on the attention side."""

    @property
    def workers(self) -> int:
        """Of the whole cluster."""
        return 2 * self.side * self.pairs

    @property
    def batch(self) -> int:
        """Sequences of a step."""
        return SEQUENCES_PER_WORKER * self.workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Workers of each side of a pair; both sides own `Setting.side` network cards, as in the
    paper's figure 12."""

    attention: int
    experts: int

    def __str__(self) -> str:
        return f"{self.attention}:{self.experts}"


def split_run(setting: Setting, split: Split) -> RunConfig:
    """The split layout, with three times as many micro-batches in flight as keep the ring busy at
    least: schedules with fewer are tried as well."""
    run = _run(
        setting,
        ParallelConfig(
            schedule="af_pipe",
            groups=setting.pairs,
            attention_workers=split.attention,
            expert_workers=split.experts,
            micro_batch_size=split.attention,
            residual=setting.residual if setting.pairs > 1 else "local",
            dedupe=setting.dedupe,
            dispatch=setting.dispatch,
            split_backward=setting.split_backward,
        ),
        _hardware(
            setting,
            attention_nics=setting.side / split.attention,
            expert_nics=setting.side / split.experts,
            mixed_nodes=setting.mixed_nodes,
        ),
    )
    parallel = run.parallel
    depth = ring_depth(
        CostsConfig(**times_of(run).op_costs().to_dict()),
        groups=parallel.groups,
        residual=parallel.residual,
        colocated=False,
    )
    update = {"in_flight": max(1, min(2 * depth, run.micro_batches))}
    return run.model_copy(update={"parallel": parallel.model_copy(update=update)})


def colocated_run(setting: Setting, *, copies_by_network: bool = True) -> RunConfig:
    """Expert parallelism, stage after stage, for the opponents' closed forms.

    With `copies_by_network` an all-to-all takes one network card's rate for all copies of a token,
    as the paper's own roofline has it (V / B, section 4.3). So does what was measured on two hosts
    of H800 (DeepEP's README: 43 GB/s for EP 16, of which half crosses the network). Without it the
    copies for the worker's own host take NVLink, at the same time.
    """
    stages = 2 * setting.pairs
    return _run(
        setting,
        ParallelConfig(
            schedule="ep_1f1b",
            groups=stages,
            attention_workers=setting.side,
            expert_workers=setting.side,
            micro_batch_size=setting.side,
            residual="direct" if stages > 1 else "local",
            dedupe=setting.dedupe,
            dispatch=setting.dispatch,
        ),
        _hardware(setting, workers_per_node=1 if copies_by_network else 8),
    )


def colocated_times(setting: Setting, *, copies_by_network: bool = True) -> StepTimes:
    """What ops and transfers of `colocated_run` take."""
    return times_of(colocated_run(setting, copies_by_network=copies_by_network))


def times_of(run: RunConfig) -> StepTimes:
    """What ops and transfers of `run` take, all of each transfer: what our own schedule hides of an
    exchange that it waits for is no property of opponents, whose closed forms say it themselves."""
    scenario = scenario_of(run, programs_for(run).spec.layout)
    return StepTimes(replace(scenario, overlaps=True))


def even(setting: Setting) -> Split:
    """As many workers on both sides."""
    return Split(attention=setting.side, experts=setting.side)


def _hardware(setting: Setting, **more: object) -> HardwareConfig:
    usual = HardwareConfig(calibration=setting.calibration, nic_speed=setting.nic_speed)
    return usual.model_copy(update=more)


def _run(setting: Setting, parallel: ParallelConfig, hardware: HardwareConfig) -> RunConfig:
    train = STARTER.train.model_copy(
        update={
            "sequence_length": setting.length,
            "global_batch_size": setting.batch,
            "precision": "bf16",
        }
    )
    return STARTER.model_copy(
        update={
            "name": "reproduce",
            "model": setting.model if setting.head else _headless(setting.model),
            "parallel": parallel,
            "train": train,
            "hardware": hardware,
            "cluster": STARTER.cluster.model_copy(update={"device": "cuda"}),
        }
    )


def _headless(model: ModelConfig) -> ModelConfig:
    return model.model_copy(update={"vocab_size": 2})
