"""Every layout against the reference, and twins against each other bit for bit."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import torch

from disagmoe.config.resolve import resolve
from disagmoe.config.run import RunConfig
from disagmoe.config.trained import refuse_only_planned
from disagmoe.optim.groups import check_groups
from disagmoe.runtime.invariance.compare import Differences, compare, same_bits
from disagmoe.runtime.invariance.fleet import Fleet, ProcessFleet, ThreadFleet
from disagmoe.runtime.invariance.layouts import Case
from disagmoe.runtime.invariance.reference import ReferenceStep, reference_run
from disagmoe.runtime.invariance.worker import Observation
from disagmoe.schedule.layout import Worker

STEPS = 3


@dataclass(frozen=True, slots=True)
class Rule:
    """How one precision is judged."""

    precision: str
    dtype: torch.dtype
    free_running: bool
    """Whether the layout trains on by itself; otherwise it takes over the reference's state before
    every step, because Adam turns rounding of near-zero gradients into steps of full size."""
    tolerance: float
    update_tolerance: float
    """For parameters against AdamW on the run's own gradients, written out in fp64."""

    @property
    def place(self) -> int:
        """Which of RULES it is."""
        return RULES.index(self)


RULES = (
    # 1e-10: some 1e4 roundings of 1e-16 each, times Adam's amplification over three steps
    Rule("fp64", torch.float64, True, 1e-10, 1e-12),
    # 1e-5: the same with roundings of 6e-8, without amplification; an update rounds a few times
    Rule("fp32", torch.float32, False, 1e-5, 1e-6),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One layout in one precision."""

    case: Case
    rule: Rule
    worst: Differences
    unequal_bits: tuple[str, ...]
    """What differs from the first layout with the same promise of bits."""

    @property
    def ok(self) -> bool:
        """Whether the layout equals the reference, and its twin bit for bit."""
        return not self.unequal_bits and self.worst.within(
            self.rule.tolerance,
            judge_values=self.rule.free_running,
            update_tolerance=self.rule.update_tolerance,
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """All outcomes, and the parameters whose gradient is zero by structure."""

    outcomes: tuple[Outcome, ...]
    zero_gradients: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether there are layouts and every one is."""
        return bool(self.outcomes) and all(outcome.ok for outcome in self.outcomes)

    def as_json(self) -> dict[str, Any]:
        """The object that `disagmoe invariance --json` prints."""
        worst = {}
        for rule in RULES:
            joined = Differences()
            for outcome in self.outcomes:
                if outcome.rule == rule:
                    joined = joined.join(outcome.worst)
            worst[rule.precision] = asdict(joined) | {"tolerance": rule.tolerance}
        failed = [o for o in self.outcomes if not o.ok]
        return {
            "ok": self.ok,
            "layouts": len({outcome.case for outcome in self.outcomes}),
            "worst": worst,
            "zero_gradients": list(self.zero_gradients),
            "failed": [
                {
                    "layout": outcome.case.name,
                    "precision": outcome.rule.precision,
                    "worst": asdict(outcome.worst),
                    "unequal_bits": list(outcome.unequal_bits[:5]),
                }
                for outcome in failed
            ],
        }


def check_cases(config: RunConfig, cases: Sequence[Case]) -> dict[Case, RunConfig]:
    """Return `config` in the layout of each case. Raises ConfigError when one does not fit, or when
    no run can execute `config` yet."""
    refuse_only_planned(config)
    check_groups(config.model, config.train.optimizer)
    return {case: case.apply(config) for case in cases}


def run_invariance(
    config: RunConfig,
    cases: Sequence[Case],
    report: Callable[[Outcome], None],
    others: Mapping[str, Fleet] | None = None,
) -> Verdict:
    """Train STEPS steps of every case in every precision; `report` hears of each outcome. `others`
    run the cases of other transports than inproc and gloo, by their name.

    Raises ConfigError when a case does not fit the model, WorkerError when a worker fails.
    """
    configs = check_cases(config, cases)  # all problems before the first run
    processes = max(
        (configs[case].parallel.workers for case in cases if case.transport == "gloo"), default=0
    )
    outcomes: list[Outcome] = []
    zero: set[str] = set()
    with closing(ProcessFleet(processes)) as gloo:
        fleets: dict[str, Fleet] = {"inproc": ThreadFleet(), "gloo": gloo, **(others or {})}
        for rule in RULES:
            references = _References(rule)
            firsts: dict[tuple[object, ...], list[dict[Worker, Observation]]] = {}
            for case in cases:
                run = resolve(_in_precision(configs[case], rule), cuda=False)
                reference = references.of(run)
                seen = _run(fleets[case.transport], run, reference, rule)
                outcome = _judge(case, rule, run, seen, reference, firsts)
                zero |= _zero_gradients(reference)
                outcomes.append(outcome)
                report(outcome)
    return Verdict(tuple(outcomes), tuple(sorted(zero)))


class _References:
    """References of one precision; layouts that cut the batch alike share one."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._known: dict[tuple[int, int, str], list[ReferenceStep]] = {}

    def of(self, config: RunConfig) -> list[ReferenceStep]:
        parallel = config.parallel
        key = (parallel.micro_batch_size, parallel.rings, config.train.loss.aux_scope)
        if key not in self._known:
            self._known[key] = reference_run(config, self._rule.dtype, STEPS)
        return self._known[key]


def _run(
    fleet: Fleet, config: RunConfig, reference: list[ReferenceStep], rule: Rule
) -> list[dict[Worker, Observation]]:
    batches = [step.batch for step in reference]
    states = [None if rule.free_running else step.before for step in reference]
    return [dict(step) for step in fleet.run(config, batches, states)]


def _judge(
    case: Case,
    rule: Rule,
    config: RunConfig,
    seen: list[dict[Worker, Observation]],
    reference: list[ReferenceStep],
    firsts: dict[tuple[object, ...], list[dict[Worker, Observation]]],
) -> Outcome:
    worst = Differences()
    for observed, expected in zip(seen, reference, strict=True):
        check = not rule.free_running
        worst = worst.join(compare(observed, expected, config, check_update=check))
    first = firsts.setdefault(case.twin, seen)
    unequal = [
        f"step {step}: {what}"
        for step, (one, other) in enumerate(zip(first, seen, strict=True))
        for what in same_bits(one, other)
    ]
    return Outcome(case, rule, worst, tuple(unequal))


def _zero_gradients(reference: list[ReferenceStep]) -> set[str]:
    grads = [step.grads for step in reference]
    return {name for name in grads[0] if not any(bool(step[name].any()) for step in grads)}


def _in_precision(config: RunConfig, rule: Rule) -> RunConfig:
    train = config.train.model_copy(update={"precision": rule.precision, "steps": STEPS})
    return config.model_copy(update={"train": train})
