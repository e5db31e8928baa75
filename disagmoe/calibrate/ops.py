"""Ops of the runtime, one after the other in one process, against what the cost model has for
their kernels: a worker of each side, no network, and nothing beside it."""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any, Self

import torch

from disagmoe.calibrate.fit import nonnegative, op_fit
from disagmoe.config.load import override
from disagmoe.config.resolve import resolve
from disagmoe.config.run import RunConfig
from disagmoe.costs.calibration import OpFit
from disagmoe.costs.kernels import Machine
from disagmoe.costs.scenario import scenario_of
from disagmoe.costs.times import UPDATE, StepTimes
from disagmoe.data.batch import Batch
from disagmoe.data.source import FixedSource
from disagmoe.runtime.profile import ATTENTION_OPS
from disagmoe.runtime.report import StepReport
from disagmoe.runtime.threads import ThreadedRun
from disagmoe.schedule.accounting import Kind
from disagmoe.schedule.from_config import programs_for
from disagmoe.schedule.ir import EXPERT_OPS, Op
from disagmoe.schedule.layout import Worker

MICRO_BATCHES = 2
_WARM, _STEPS = 1, 2
_LAYERS = 2
"""Layers with experts that are run: all are alike but for their windows."""
_MEASURED = ATTENTION_OPS | frozenset(map(str, EXPERT_OPS))


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSample:
    """What a serial step of `config` took."""

    config: RunConfig
    seconds: Mapping[str, float]
    """By op: what it takes on average."""
    update_s: Mapping[str, float]
    """The end of a step, by worker."""

    @classmethod
    def of(cls, config: RunConfig, steps: Sequence[Mapping[str, StepReport]]) -> Self:
        """From traced steps of `config`, by worker: medians over them, so that whatever else the
        machine does counts where it does so often."""
        return cls(
            config=config,
            seconds=_medians([_op_means(step) for step in steps]),
            update_s=_medians(
                [
                    {name: one.seconds.get(Kind.OPTIMIZER, 0.0) for name, one in step.items()}
                    for step in steps
                ]
            ),
        )


def serial(config: RunConfig, micro_batch_size: int) -> RunConfig:
    """Return a run of a few layers of the model of `config`, one op at a time."""
    model = config.model
    layers = model.dense_layers + min(_LAYERS, model.moe_layers)
    return resolve(
        override(
            config,
            [
                f"model.layers={layers}",
                "parallel.schedule=serial",
                "parallel.profile=off",
                "parallel.groups=1",
                "parallel.residual=auto",
                "parallel.rings=1",
                "parallel.attention_workers=1",
                "parallel.expert_workers=1",
                "parallel.attention_shares=[]",
                "parallel.expert_shares=[]",
                "parallel.in_flight=0",
                "parallel.layout=fixed",
                f"parallel.micro_batch_size={micro_batch_size}",
                f"train.global_batch_size={MICRO_BATCHES * micro_batch_size}",
                "train.eval.every=0",
                f"trace.first_step={_WARM}",
                f"trace.steps={_STEPS}",
                'hardware.slow_worker=""',
                "hardware.slow_factor=1.5",
                "hardware.expert_skew=0",
                "cluster.mode=local",
            ],
        ),
        cuda=config.cluster.device == "cuda",
    )


def sample_ops(config: RunConfig, micro_batch_size: int, device: torch.device) -> OpSample:
    """Run a few steps of `config` with random tokens, and return how long its ops took.

    Raises:
        WorkerError: a step fails.
    """
    run = serial(config, micro_batch_size)
    batch = _random_batch(run)
    steps = range(_WARM + _STEPS)
    with closing(ThreadedRun(run, FixedSource([batch] * len(steps)), device=device)) as workers:
        # each worker goes through all steps by itself: they meet in each step's end
        reports = workers.each(lambda runtime: [runtime.run_step(step) for step in steps])
    seen = [{str(worker): each[step] for worker, each in reports.items()} for step in steps[_WARM:]]
    return OpSample.of(run, seen)


def _random_batch(config: RunConfig) -> Batch:
    shape = (config.train.global_batch_size, config.train.sequence_length)
    generator = torch.Generator().manual_seed(config.train.seed)
    tokens_BS, targets_BS = (
        torch.randint(config.model.vocab_size, shape, generator=generator) for _ in range(2)
    )
    return Batch(tokens_BS, targets_BS)


def _op_means(step: Mapping[str, StepReport]) -> dict[str, float]:
    times: dict[str, list[float]] = {}
    for report in step.values():
        for span in report.trace.spans if report.trace else ():
            op = span.label.partition(" ")[0]
            if span.kind is Kind.COMPUTE and op in _MEASURED:
                times.setdefault(op, []).append(span.end_s - span.start_s)
    return {op: fmean(each) for op, each in times.items()}


def _medians(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: median(step[name] for step in steps) for name in steps[0]}


def fit_flash(samples: Sequence[OpSample], machine: Machine) -> Machine:
    """Return `machine` with the rate of attention as it is inside of layers, between projections
    and norms, from ops with sequences of several lengths; as it is where those cannot tell."""
    free = tuple(replace(curve, share=math.inf) for curve in machine.calibration.flash)
    without = _with(machine, flash=free)
    forward = _parts(samples, machine, without, Op.ATTN_FWD)
    backward = _parts(samples, machine, without, Op.ATTN_BWD)
    if forward is None or backward is None:
        return machine
    flash = tuple(
        replace(curve, share=curve.share / forward) for curve in machine.calibration.flash
    )
    ratio = machine.calibration.flash_backward * forward / backward
    return _with(machine, flash=flash, flash_backward=ratio)


def _with(machine: Machine, **changes: Any) -> Machine:
    return replace(machine, calibration=replace(machine.calibration, **changes))


def _parts(samples: Sequence[OpSample], machine: Machine, without: Machine, op: Op) -> float | None:
    """How many times as much longer attention takes in `op` than the rest of it does, both over
    what `machine` says; `without` is the same with attention in no time."""
    name = op.value
    whole = [_modelled(one, machine).op_costs().to_dict()[name] for one in samples]
    rest = [_modelled(one, without).op_costs().to_dict()[name] for one in samples]
    mixing = [both - other for both, other in zip(whole, rest, strict=True)]
    measured = [one.seconds[name] for one in samples]
    of_rest, of_mixing, _ = nonnegative([rest, mixing, [1.0] * len(rest)], measured)
    return of_mixing / of_rest if of_rest and of_mixing else None


def _modelled(sample: OpSample, machine: Machine) -> StepTimes:
    scenario = scenario_of(sample.config, programs_for(sample.config).spec.layout)
    return StepTimes(replace(scenario, attention=machine, experts=machine))


def fit_ops(samples: Iterable[OpSample], machine: Machine) -> dict[str, OpFit]:
    """Return how ops follow from their kernels on `machine`, whose calibration has no ops yet.

    Parts of a split backward are not run here; they share what the whole has.
    """
    kernels_s: dict[str, list[float]] = {}
    measured_s: dict[str, list[float]] = {}

    def add(name: str, kernels: float, measured: float) -> None:
        if kernels > 0 and measured > 0:
            kernels_s.setdefault(name, []).append(kernels)
            measured_s.setdefault(name, []).append(measured)

    for sample in samples:
        times = _modelled(sample, machine)
        costs = times.op_costs().to_dict()
        for name, seconds in sample.seconds.items():
            add(name, costs[name], seconds)
        for worker, seconds in sample.update_s.items():
            add(UPDATE, times.end(Worker.parse(worker)).update_s, seconds)
    found = {name: op_fit(kernels_s[name], measured_s[name]) for name in kernels_s}
    whole = found[Op.EXPERTS_BWD.value]
    half = OpFit(factor=whole.factor, fixed_s=whole.fixed_s / 2)
    found |= {Op.EXPERTS_DGRAD.value: half, Op.EXPERTS_WGRAD.value: half}
    return found | {Op.HEAD_EVAL.value: found[Op.HEAD.value]}
