"""`disagmoe invariance`: every layout equals one process, and a planted fault is found.

A comparison that cannot fail is worth nothing, so each part of it is shown one wrong step.
"""

import itertools
import json
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
import torch

from disagmoe.config.load import load_run_config
from disagmoe.config.run import RunConfig
from disagmoe.errors import ConfigError, WorkerError
from disagmoe.runtime import attention, halves, step
from disagmoe.runtime.experts import ExpertSide
from disagmoe.runtime.invariance.compare import (
    Differences,
    number_difference,
    same_bits,
    tensor_difference,
)
from disagmoe.runtime.invariance.layouts import Case, cases, fitting
from disagmoe.runtime.invariance.parallel import collect, divide, run_divided
from disagmoe.runtime.invariance.run import Verdict, run_invariance
from disagmoe.runtime.invariance.worker import Observation
from disagmoe.runtime.parameters import Parameters
from disagmoe.runtime.replicas import Replicas
from disagmoe.runtime.report import StepReport
from disagmoe.runtime.update import Update
from disagmoe.schedule.layout import Worker

ROOT = Path(__file__).parents[2]
SMALL = [
    "model.layers=2",
    "model.hidden=16",
    "train.global_batch_size=5",
    "train.sequence_length=5",
]
SPLIT = Case(micro_batches=2, attention=2, experts=2, in_flight=2)


@pytest.mark.gloo
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_layout_equals_one_process() -> None:
    # 4 layers, which 2 and 4 groups share evenly and 3 do not
    arguments = ["invariance", "--json", "--config", "configs/tiny.toml", "--set", "model.layers=4"]
    done = subprocess.run(
        [sys.executable, "-m", "disagmoe", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert (seen["ok"], seen["failed"]) == (True, [])
    assert seen["layouts"] == len(set(cases())) >= 24
    for precision, tolerance in (("fp64", 1e-10), ("fp32", 1e-5)):
        worst = seen["worst"][precision]
        assert worst["tolerance"] == tolerance
        judged = [worst[name] for name in ("loss", "balance", "z", "norm", "grads")]
        assert 0 < max(judged) <= tolerance
        assert worst["flips"] == 0
    assert seen["worst"]["fp64"]["values"] <= 1e-10


def test_the_layouts_that_are_tried() -> None:
    """Every value of every dimension that the promise names, and enough of them over gloo."""
    tried = cases()
    assert len(tried) == len(set(tried)) == len({case.name for case in tried})
    assert {case.micro_batches for case in tried} >= {1, 2, 4}
    assert {case.groups for case in tried} >= {1, 2, 3, 4}
    assert {case.attention for case in tried} >= {1, 2, 3}
    assert {case.experts for case in tried} >= {1, 2, 3}
    assert {case.in_flight for case in tried} >= {1, 2, 4}
    assert {case.rings for case in tried} >= {1, 2, 3}
    uneven = [case for case in tried if case.attention_shares or case.expert_shares]
    assert {case.schedule for case in uneven} == {"af_pipe", "ep_overlap"}
    assert {case.rings for case in uneven} == {1, 2}
    assert {case.schedule for case in tried} == {"af_pipe", "serial", "ep_1f1b", "ep_overlap"}
    assert {case.residual for case in tried} >= {"auto", "direct"}  # auto is local or fused
    for schedule in ("af_pipe", "ep_1f1b", "ep_overlap"):
        assert {case.groups for case in tried if case.schedule == schedule} >= {1, 2, 4}
    assert {case.groups for case in tried if case.residual == "direct"} >= {2, 3, 4}
    split = [case for case in tried if case.split_backward]
    assert {case.schedule for case in split} >= {"af_pipe", "ep_overlap"}
    assert {case.groups for case in split} >= {1, 2, 4}
    assert {case.aux_scope for case in tried} == {"sequence", "micro_batch", "global"}
    assert sum(case.transport == "gloo" for case in tried) >= 6
    twins = [case.twin for case in tried]
    assert len(set(twins)) < len(twins)


def test_layouts_that_a_model_cannot_have_are_left_out() -> None:
    """Tied embeddings of 4 layers are not in one group of 3; a step of 6 sequences that is asked
    for in 4 micro-batches of equal size has 3."""
    config = load_run_config(ROOT / "configs/tiny_mixtral.toml", [])
    kept, others = fitting(config, cases())
    assert {case.groups for case in others} == {3}
    assert {why.partition(" needs ")[0] for why in others.values()} == {
        "model.tied_embeddings = true"
    }
    assert set(kept) | set(others) == set(cases())
    depths = {case.apply(config).parallel.in_flight for case in kept if case.micro_batches == 4}
    assert depths == {1, 2, 3}
    with pytest.raises(ConfigError, match=r"parallel.groups = 4 is more than model.layers = 2"):
        fitting(
            load_run_config(ROOT / "configs/tiny_wsd_bf16.toml"), [Case(groups=4, micro_batches=1)]
        )


# Planted faults


def small() -> RunConfig:
    return load_run_config(ROOT / "configs/tiny.toml", SMALL)


def judge(*tried: Case) -> Verdict:
    return run_invariance(small(), tried, lambda outcome: None)


Plant = Callable[[pytest.MonkeyPatch], None]


def wrong_divisor(patch: pytest.MonkeyPatch) -> None:
    count_valid = step.count_valid
    patch.setattr(step, "count_valid", lambda targets: count_valid(targets) + 1)


def no_sum_over_replicas(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replicas, "connect", lambda self, channel: None)


def sums_that_do_not_start_anew(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Parameters, "zero_grad", lambda self: None)


def swapped_gates(patch: pytest.MonkeyPatch) -> None:
    place_gates = attention.place_gates
    patch.setattr(attention, "place_gates", lambda *args: place_gates(*args).flip(1))


def gates_without_gradient(patch: pytest.MonkeyPatch) -> None:
    place_gates = attention.place_gates
    patch.setattr(attention, "place_gates", lambda *args: torch.zeros_like(place_gates(*args)))


def other_experts(patch: pytest.MonkeyPatch) -> None:
    half = halves.attention_half

    def turned(*args: Any, **kwargs: Any) -> halves.AttentionOut:
        out = half(*args, **kwargs)
        return replace(out, routing=replace(out.routing, expert_TK=(out.routing.expert_TK + 1) % 7))

    patch.setattr(halves, "attention_half", turned)


def replicas_counted_twice(patch: pytest.MonkeyPatch) -> None:
    norms = Update.norm_squared
    patch.setattr(
        Update, "norm_squared", lambda self: {kind: 2 * x for kind, x in norms(self).items()}
    )


def clipping_by_side(patch: pytest.MonkeyPatch) -> None:
    apply = Update.apply
    patch.setattr(Update, "apply", lambda self, lr, scale: apply(self, lr, scale * 0.5))


def one_expert_worker_stands_still(patch: pytest.MonkeyPatch) -> None:
    backward = ExpertSide._backward

    def lossy(self: ExpertSide, layer: int, mb: int) -> None:
        backward(self, layer, mb)
        if self._role.rank == 1 and mb == 0:
            self._parameters.zero_grad()

    patch.setattr(ExpertSide, "_backward", lossy)


def routing_unseen(patch: pytest.MonkeyPatch) -> None:
    forward = attention.AttentionSide._attn_fwd

    def unseen(self: attention.AttentionSide, layer: int, mb: int) -> None:
        self.recording = None
        forward(self, layer, mb)

    patch.setattr(attention.AttentionSide, "_attn_fwd", unseen)


FAULTS: list[tuple[Plant, str]] = [
    (wrong_divisor, "loss"),
    (no_sum_over_replicas, "grads"),
    (sums_that_do_not_start_anew, "grads"),
    (swapped_gates, "grads"),
    (gates_without_gradient, "grads"),
    (other_experts, "flips"),
    (routing_unseen, "flips"),
    (replicas_counted_twice, "norm"),
    (clipping_by_side, "update"),
    (one_expert_worker_stands_still, "grads"),
]


@pytest.mark.gloo  # run_invariance listens on loopback for processes, though none is started here
def test_the_sound_run_passes() -> None:
    verdict = judge(SPLIT, replace(SPLIT, in_flight=1))
    assert verdict.ok
    seen = verdict.as_json()
    assert (seen["ok"], seen["layouts"], seen["failed"]) == (True, 2, [])


@pytest.mark.gloo
@pytest.mark.parametrize(("plant", "shows"), FAULTS, ids=[plant.__name__ for plant, _ in FAULTS])
def test_a_planted_fault_is_found(
    plant: Plant, shows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    verdict = judge(SPLIT)
    assert not verdict.ok
    seen = verdict.as_json()
    assert not seen["ok"]
    (first, *_) = [failed for failed in seen["failed"] if failed["precision"] == "fp32"]
    assert first["layout"] == SPLIT.name
    assert first["worst"][shows] > seen["worst"]["fp32"]["tolerance"]


@pytest.mark.gloo
def test_twins_that_differ_in_the_order_of_sums_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Far within the tolerance, and yet not the same bits."""
    accumulate = Parameters.accumulate
    calls = itertools.count()
    per_layout = 3 * 2 * 3  # steps, micro-batches, and the attention ops that have gradients

    def rounded(self: Parameters, local_names: Any, grads: Any) -> None:
        second = next(calls) // per_layout == 1
        accumulate(self, local_names, [g * (1 + second * 2**-52) for g in grads])

    monkeypatch.setattr(Parameters, "accumulate", rounded)
    one = Case(micro_batches=2, in_flight=1)
    verdict = judge(one, replace(one, in_flight=2))
    ok = [outcome.ok for outcome in verdict.outcomes]
    assert (ok, verdict.ok) == ([True, False, True, True], False)
    twin = verdict.outcomes[1]
    assert twin.worst.grads < 1e-14
    assert "step 0: A0.0 gradient" in " ".join(twin.unequal_bits)


# The parts of the comparison


def test_differences_of_numbers() -> None:
    assert number_difference(2.5, 2.0) == 0.25
    assert number_difference(1e-7, 0.0) == pytest.approx(0.1)  # against the floor of 1e-6
    for value, reference in ((math.nan, 1.0), (1.0, math.nan), (math.inf, math.inf)):
        assert number_difference(value, reference) == math.inf


def test_differences_of_tensors() -> None:
    ones = torch.ones(4)
    assert tensor_difference(ones * 1.5, ones, 0.0) == 0.5
    assert tensor_difference(torch.full((4,), 1e-6), torch.zeros(4), 2.0) == pytest.approx(1.0)
    assert tensor_difference(torch.zeros(4), torch.zeros(4), 0.0) == 0.0
    assert tensor_difference(ones, torch.zeros(4), 0.0) == math.inf
    assert tensor_difference(ones, torch.ones(2, 2), 0.0) == math.inf
    broken = torch.tensor([1.0, math.nan, 1.0, 1.0])
    assert tensor_difference(broken, ones, 0.0) == math.inf
    assert tensor_difference(ones, broken, 0.0) == math.inf
    assert tensor_difference(broken, broken, 0.0) == math.inf


def test_the_worse_of_two_differences() -> None:
    left = Differences(loss=1.0, grads=2.0, worst_grad="left")
    right = Differences(z=3.0, grads=1.0, flips=4, worst_grad="right")
    both = Differences(loss=1.0, z=3.0, grads=2.0, flips=4, worst_grad="left")
    assert left.join(right) == right.join(left) == both


@pytest.mark.parametrize("field", ["loss", "balance", "z", "norm", "grads"])
@pytest.mark.parametrize("value", [1e-4, math.inf, math.nan])
def test_each_difference_is_judged(field: str, value: float) -> None:
    within = {"judge_values": False, "update_tolerance": 1e-6}
    assert Differences().within(1e-5, **within)
    assert not Differences(**{field: value}).within(1e-5, **within)


def test_values_updates_and_routing_are_judged() -> None:
    assert Differences(values=1.0).within(1e-5, judge_values=False, update_tolerance=1e-6)
    assert not Differences(values=1.0).within(1e-5, judge_values=True, update_tolerance=1e-6)
    assert not Differences(update=2e-6).within(1e-5, judge_values=False, update_tolerance=1e-6)
    assert not Differences(flips=1).within(1e-5, judge_values=False, update_tolerance=1e-6)


def observation(worker: str, loss: float, value: float) -> dict[Worker, Observation]:
    report = StepReport(
        step=0,
        loss=loss,
        balance=1.0,
        z=1.0,
        grad_norm=1.0,
        lr=0.1,
        tokens=1,
        valid_targets=1,
        skipped="",
        stopped=False,
        saving=False,
        choices_LE=((1,),),
        seconds={},
        traffic={},
        hops={},
        peak_memory_bytes=0,
    )
    tensors = {"w": torch.tensor([value])}
    return {Worker.parse(worker): Observation(report, tensors, tensors, {}, {})}


def test_equal_bits_whatever_the_workers_are_called() -> None:
    one, ulp = 1.0, 1.0 + 2**-23
    assert list(same_bits(observation("A0.0", 1.0, one), observation("C0.0", 1.0, one))) == []
    assert list(same_bits(observation("A0.0", 1.0, one), observation("C0.0", 1.5, ulp))) == [
        "C0.0 loss",
        "C0.0 gradient w",
        "C0.0 value w",
    ]


def test_verdict_of_nothing_is_not_ok() -> None:
    assert not Verdict((), ()).ok


@pytest.mark.parametrize("jobs", [1, 2, 3, 100])
def test_shares_of_the_layouts_are_about_equal_and_keep_twins_together(jobs: int) -> None:
    shares = divide(cases(), jobs)
    assert sorted(case.name for share in shares for case in share) == sorted(
        case.name for case in cases()
    )
    assert len(shares) == min(jobs, len({case.twin for case in cases()}))
    for share in shares:
        assert share == [case for case in cases() if case in share]
        twins = {case.twin for case in share}
        assert all(case in share for case in cases() if case.twin in twins)
    if jobs <= 3:
        longest, shortest = max(map(len, shares)), min(map(len, shares))
        assert longest <= 1.5 * shortest


@pytest.mark.gloo
@pytest.mark.slow
def test_two_processes_come_to_the_verdict_of_one() -> None:
    tried = [SPLIT, Case(micro_batches=1), replace(SPLIT, in_flight=1)]
    heard: list[str] = []
    verdict = run_divided(small(), tried, lambda outcome: heard.append(outcome.case.name), 2)
    assert verdict == judge(*tried)
    assert sorted(heard) == sorted(2 * [case.name for case in tried])


def test_what_fails_in_a_process_of_the_comparison_is_raised() -> None:
    here, there = Pipe(duplex=False)
    there.send(WorkerError("A0.0: no memory"))
    with pytest.raises(WorkerError, match=r"^A0.0: no memory$"):
        collect([here], lambda outcome: None)
    there.close()
    with pytest.raises(WorkerError, match="a process of the comparison has died"):
        collect([here], lambda outcome: None)


def test_a_layout_that_does_not_fit_is_refused_before_any_process() -> None:
    with pytest.raises(ConfigError, match=r"parallel\.groups = 3 is more than model\.layers = 2"):
        run_divided(small(), [SPLIT, replace(SPLIT, groups=3)], lambda outcome: None, 2)


def test_a_balance_without_weight_is_not_asked_of_micro_batches() -> None:
    """Its counts are not summed over workers then, so that there is nothing to compare."""
    config = load_run_config(ROOT / "configs/tiny.toml", [*SMALL, "train.loss.aux_coef=0"])
    tried = [SPLIT, replace(SPLIT, aux_scope="micro_batch")]
    assert run_invariance(config, tried, lambda outcome: None).ok


def test_no_thread_of_a_layout_outlives_it() -> None:
    def channel_threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if ">" in thread.name]

    assert judge(SPLIT).ok
    deadline = time.monotonic() + 5
    while channel_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert channel_threads() == []
