"""Differences between a layout's step and the reference's, as DESIGN's rule defines them.

Of a tensor: norm of the difference / max(norm of the reference, 1e-6 x global gradient norm).
Of a number: |difference| / max(|reference|, 1e-6).
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

import torch

from disagmoe.config.run import RunConfig
from disagmoe.config.shares import bounds
from disagmoe.data.batch import ring_micro_batches
from disagmoe.optim.clip import clip_scale
from disagmoe.optim.groups import rule_of
from disagmoe.optim.lr import learning_rate
from disagmoe.runtime.invariance.reference import ReferenceStep
from disagmoe.runtime.invariance.worker import Observation
from disagmoe.schedule.layout import Side, Worker

_FLOOR = 1e-6


@dataclass(frozen=True, slots=True)
class Differences:
    """Worst relative differences of one or more steps; `flips` counts routing decisions."""

    loss: float = 0.0
    balance: float = 0.0
    z: float = 0.0
    norm: float = 0.0
    grads: float = 0.0
    values: float = 0.0
    update: float = 0.0
    balances: float = 0.0
    flips: int = 0
    worst_grad: str = ""

    def join(self, other: "Differences") -> "Differences":
        """Return the worse of both, field by field."""
        worse = {
            field.name: max(getattr(self, field.name), getattr(other, field.name))
            for field in fields(self)
            if field.name != "worst_grad"
        }
        name = self.worst_grad if self.grads >= other.grads else other.worst_grad
        return Differences(**worse, worst_grad=name)

    def within(self, tolerance: float, *, judge_values: bool, update_tolerance: float) -> bool:
        """Whether all of them are within bounds. Not a number is outside of any."""
        judged = [self.loss, self.balance, self.z, self.norm, self.grads, self.balances]
        judged += [self.values] if judge_values else []
        return (
            all(value <= tolerance for value in judged)
            and self.update <= update_tolerance
            and self.flips == 0
        )


def number_difference(value: float, reference: float) -> float:
    """Relative difference of two numbers; infinite when either is not finite."""
    if not (math.isfinite(value) and math.isfinite(reference)):
        return math.inf
    return abs(value - reference) / max(abs(reference), _FLOOR)


def tensor_difference(value: torch.Tensor, reference: torch.Tensor, scale: float) -> float:
    """Relative difference of two tensors, infinite when either is not finite; `scale` is the global
    gradient norm, or 0."""
    finite = bool(value.isfinite().all()) and bool(reference.isfinite().all())
    if value.shape != reference.shape or not finite:
        return math.inf
    difference = (value.double() - reference.double()).norm().item()
    size = max(reference.double().norm().item(), _FLOOR * scale)
    return difference / size if size else (0.0 if difference == 0 else math.inf)


def compare(
    observations: Mapping[Worker, Observation],
    reference: ReferenceStep,
    config: RunConfig,
    *,
    check_update: bool,
) -> Differences:
    """Compare one step of all workers with the reference's.

    `check_update` compares the parameters with AdamW applied to the run's own gradients, from the
    reference's state before the step, which the run must have started from.
    """
    worst = Differences()
    loss = config.train.loss
    # without weight, the balance of micro-batches would need sums over workers for nothing
    counts_balance = loss.aux_scope == "sequence" or loss.aux_coef > 0
    for worker, seen in observations.items():
        report = seen.report
        grads = {
            name: tensor_difference(grad, reference.grads[name], reference.norm)
            for name, grad in seen.grads.items()
        }
        name = max(grads, key=grads.__getitem__)
        values = [
            tensor_difference(value, reference.after.values[key], 0.0)
            for key, value in seen.values.items()
        ]
        worst = worst.join(
            Differences(
                loss=number_difference(report.loss, reference.loss),
                balance=number_difference(report.balance, reference.balance)
                if counts_balance
                else 0.0,
                z=number_difference(report.z, reference.z),
                norm=number_difference(report.grad_norm, reference.norm),
                grads=grads[name],
                values=max(values),
                update=_update_difference(seen, reference, config) if check_update else 0.0,
                balances=max(
                    (
                        tensor_difference(bias, reference.after.balances[key], 1.0)
                        for key, bias in seen.balances.items()
                    ),
                    default=0.0,
                ),
                flips=_flips(worker, seen, reference, config),
                worst_grad=name,
            )
        )
    missing = set(reference.grads) - {n for seen in observations.values() for n in seen.grads}
    if missing:
        return worst.join(Differences(grads=math.inf, worst_grad=min(missing)))
    return worst


def _flips(worker: Worker, seen: Observation, reference: ReferenceStep, config: RunConfig) -> int:
    """Number of tokens of `worker` that went to other experts than in the reference, and of
    decisions that it did not record."""
    parallel = config.parallel
    if worker.group.side is Side.EXPERT:
        return 0
    positions = config.train.sequence_length
    mine = ring_micro_batches(
        reference.batch, parallel.micro_batch_size, worker.ring, parallel.rings
    )
    layers = range(worker.group.index, config.model.moe_layers, parallel.groups)
    decisions = {(layer, mb) for layer in layers for mb in range(len(mine))}
    flips = len(decisions - seen.choices.keys())
    for (layer, mb), chosen_TK in seen.choices.items():
        if mine[mb].sequences == 0:
            continue
        start, stop = bounds(mine[mb].sequences, parallel.attention_weights, worker.rank)
        whole_TK = reference.choices[_place(reference, config, worker.ring, mb)][layer]
        expected_TK = whole_TK[start * positions : stop * positions]
        if chosen_TK.shape != expected_TK.shape:
            return max(1, chosen_TK.numel())
        flips += int((chosen_TK != expected_TK).any(dim=1).sum())
    return flips


def _place(reference: ReferenceStep, config: RunConfig, ring: int, mb: int) -> int:
    """Index of a ring's micro-batch among all that are not empty."""
    parallel = config.parallel
    before = [
        part
        for other in range(ring)
        for part in ring_micro_batches(
            reference.batch, parallel.micro_batch_size, other, parallel.rings
        )
    ]
    return sum(part.sequences > 0 for part in before) + mb


def _update_difference(seen: Observation, reference: ReferenceStep, config: RunConfig) -> float:
    """Worst difference between the run's new parameters and AdamW, written out in fp64."""
    optimizer = config.train.optimizer
    before = reference.before
    t = before.steps + 1
    lr = learning_rate(seen.report.step, config.train)
    scale = clip_scale(seen.report.grad_norm, optimizer.clip_norm)
    worst = 0.0
    for name, value in seen.values.items():
        grad = seen.grads[name].double() * scale
        old = before.values[name].double()
        first = optimizer.beta1 * before.exp_avg[name].double() + (1 - optimizer.beta1) * grad
        second = (
            optimizer.beta2 * before.exp_avg_sq[name].double() + (1 - optimizer.beta2) * grad**2
        )
        rule = rule_of(name, old.dim(), optimizer)
        step = (first / (1 - optimizer.beta1**t)) / (
            (second / (1 - optimizer.beta2**t)).sqrt() + optimizer.eps
        )
        own_lr = lr * rule.lr_factor
        new = old * (1 - own_lr * rule.weight_decay) - own_lr * step
        worst = max(worst, tensor_difference(value, new, 0.0))
    return worst


def same_bits(
    first: Mapping[Worker, Observation], second: Mapping[Worker, Observation]
) -> Iterator[str]:
    """Yield what differs in a single bit between two runs of one division of the work.

    Their workers may have other names, where the same ones play two roles, so tensors are found by
    global name; that also compares all replicas with each other."""
    reports = [seen.report for seen in first.values()]
    grads = {name: t for seen in first.values() for name, t in seen.grads.items()}
    values = {name: t for seen in first.values() for name, t in seen.values.items()}
    for worker, seen in second.items():
        for what in ("loss", "balance", "z", "grad_norm"):
            if getattr(seen.report, what) != getattr(reports[0], what):
                yield f"{worker} {what}"
        for which, expected, found in (
            ("gradient", grads, seen.grads),
            ("value", values, seen.values),
        ):
            for name, tensor in found.items():
                if not torch.equal(tensor, expected[name]):
                    yield f"{worker} {which} {name}"
