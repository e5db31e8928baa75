"""The end of a step on all workers: norm, skip, update, time. tests/parity has the layouts."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

from disagmoe.config.run import RunConfig
from disagmoe.data.batch import Batch
from disagmoe.runtime.step import WorkerRuntime
from disagmoe.runtime.threads import ThreadedRun
from disagmoe.schedule.layout import Side
from tests.unit.runtime.tiny import (
    assert_equals_reference,
    batch_of,
    one_step,
    reference,
    step,
    threads,
    tiny,
    values_of,
)


def bits_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2])
def test_balance_of_micro_batches_equals_the_same_partition(workers: int, groups: int) -> None:
    sets = {
        "train__loss__aux_coef": 1.0,
        "train__loss__aux_scope": "micro_batch",
        "train__global_batch_size": 7,
        "parallel__micro_batch_size": 3,
    }
    config = tiny(**sets, parallel__attention_workers=workers, parallel__groups=groups)
    assert_equals_reference(one_step(config), reference(config, batch_of(config)))


@pytest.mark.parametrize(
    "sets",
    [
        {"parallel__attention_workers": 3, "parallel__expert_workers": 2},
        {"parallel__rings": 2, "parallel__attention_workers": 2},
        {"parallel__groups": 2, "parallel__attention_workers": 2, "parallel__rings": 2},
        {
            "parallel__groups": 2,
            "parallel__schedule": "ep_overlap",
            "parallel__attention_workers": 2,
            "parallel__expert_workers": 2,
        },
    ],
)
def test_global_norm_counts_replicas_once_and_is_the_same_everywhere(
    sets: dict[str, object],
) -> None:
    config = tiny(**sets)
    seen = one_step(config)
    assert len({report.grad_norm for report in seen.reports.values()}) == 1
    assert_equals_reference(seen, reference(config, batch_of(config)))


@dataclass
class Poison:
    """Makes one gradient of one worker NaN in every step until it is lifted."""

    run: ThreadedRun
    worker: str
    second: bool = False

    def __enter__(self) -> None:
        (runtime,) = [r for w, r in self.run.workers.items() if str(w) == self.worker]
        parameters = runtime.parameters
        self._original = parameters.join_uses
        self._parameters = parameters

        def join_uses() -> None:
            which = parameters._second if self.second else parameters.grads
            next(iter(which.values())).view(-1)[0] = math.nan
            self._original()

        parameters.join_uses = join_uses  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        self._parameters.join_uses = self._original  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("sets", "worker", "second"),
    [
        ({"parallel__attention_workers": 2}, "A0.1", False),
        ({"parallel__expert_workers": 2}, "F0.1", False),
        ({"parallel__groups": 2, "parallel__attention_workers": 2}, "F1.0", False),
        ({"model__tied_embeddings": True, "parallel__attention_workers": 2}, "A0.1", True),
        ({"parallel__groups": 2, "parallel__schedule": "ep_1f1b"}, "C1.0", True),
    ],
)
def test_a_gradient_that_is_not_finite_skips_the_step_everywhere(
    sets: dict[str, object], worker: str, second: bool
) -> None:
    config = tiny(**sets)
    batches = [batch_of(config, seed) for seed in range(2)]
    with threads(config, batches) as run:
        before = values_of(run)
        with Poison(run, worker, second):
            poisoned = step(run, 0)
        for report in poisoned.reports.values():
            assert report.skipped == f"gradients of {worker} are not finite"
        assert all(bits_equal(poisoned.values[w], before[w]) for w in before)
        assert_equals_reference(step(run, 1), reference(config, batches[1]))
        assert {r.update.optimizer.step_count for r in run.workers.values()} == {1}


@pytest.mark.parametrize("side", [Side.ATTENTION, Side.EXPERT])
def test_a_parameter_that_is_not_finite_names_its_worker(side: Side) -> None:
    config = tiny(parallel__attention_workers=2, parallel__expert_workers=2)
    with threads(config, [batch_of(config)]) as run:
        bad = [worker for worker in run.workers if worker.group.side is side][-1]
        values = run.workers[bad].parameters.global_values()
        name = "final_norm.weight" if side is Side.ATTENTION else "layers.1.experts.3.down.weight"
        with torch.no_grad():
            values[name].fill_(math.nan)
        before = values_of(run)
        seen = step(run)
    assert str(bad) in seen.report.skipped
    assert len({report.skipped for report in seen.reports.values()}) == 1
    for worker, values in before.items():
        for name, value in values.items():
            assert torch.equal(seen.values[worker][name].nan_to_num(7.0), value.nan_to_num(7.0))


def test_clipping_scales_all_gradients_alike() -> None:
    """The update of a clipped step is that of one process with the same global norm."""
    sets = {"train__optimizer__clip_norm": 0.01, "train__optimizer__eps": 1.0}
    one = one_step(tiny(**sets))
    many = one_step(tiny(**sets, parallel__attention_workers=3, parallel__groups=2))
    assert one.report.grad_norm > 0.01
    expected = {name: v for values in one.values.values() for name, v in values.items()}
    start = initial_global(tiny())
    for values in many.values.values():
        for name, value in values.items():
            moved = (expected[name] - start[name]).norm()
            assert (value - expected[name]).norm() <= 1e-9 * moved, name


def initial_global(config: RunConfig) -> dict[str, torch.Tensor]:
    with threads(config, []) as run:
        return {name: v for values in values_of(run).values() for name, v in values.items()}


@pytest.mark.parametrize(
    "sets",
    [
        {"model__tied_embeddings": True},
        {"model__tied_embeddings": False, "parallel__groups": 2, "parallel__attention_workers": 2},
    ],
)
def test_bits_do_not_depend_on_the_depth_in_flight(sets: dict[str, object]) -> None:
    fixed = {"train__precision": "fp32", "parallel__micro_batch_size": 1, **sets}
    seen = [one_step(tiny(parallel__in_flight=depth, **fixed)) for depth in (1, 2, 4)]
    seen.append(one_step(tiny(parallel__schedule="serial", **fixed)))
    for other in seen[1:]:
        assert bits_equal(other.all_grads(), seen[0].all_grads())
        for worker, values in seen[0].values.items():
            assert bits_equal(other.values[worker], values)
        assert other.report.loss == seen[0].report.loss
        assert other.report.grad_norm == seen[0].report.grad_norm


def test_shares_decide_who_handles_what() -> None:
    config = tiny(
        parallel__attention_workers=2,
        parallel__attention_shares=[1, 3],
        parallel__expert_workers=2,
        parallel__expert_shares=[3, 1],
        parallel__micro_batch_size=4,
    )
    with threads(config, [batch_of(config)]) as run:
        recordings = run.each(lambda runtime: runtime.record())
        run.each(lambda runtime: runtime.run_step(0))
        tokens = {str(w): [len(c) for c in r.choices.values()] for w, r in recordings.items()}
        experts = {
            str(worker): sum(name.endswith("down.weight") for name in values)
            for worker, values in values_of(run).items()
        }
    assert tokens == {"A0.0": [5, 5], "A0.1": [15, 15], "F0.0": [], "F0.1": []}
    assert experts == {"A0.0": 0, "A0.1": 0, "F0.0": 6, "F0.1": 2}


def test_reading_data_is_charged_to_data() -> None:
    """torchtitan#1481: the fetch itself was outside of the timer."""

    class Slow:
        def __init__(self, batch: Batch) -> None:
            self._batch = batch

        def step(self, step: int) -> Batch:
            time.sleep(0.2)
            return self._batch

        def held_out(self) -> Iterator[Batch]:
            return iter(())

    config = tiny()
    run = ThreadedRun(config, Slow(batch_of(config)), timeout_s=20.0)
    run.each(lambda runtime: runtime.stopwatch.take())
    reports = run.each(lambda runtime: runtime.run_step(0))
    run.close()
    (reader,) = [r for worker, r in reports.items() if worker.group.side is Side.ATTENTION]
    (waiter,) = [r for worker, r in reports.items() if worker.group.side is Side.EXPERT]
    assert reader.seconds["data"] >= 0.2
    assert waiter.seconds["idle"] >= 0.15  # it waits for who reads, not for the network
    assert waiter.seconds["recv_wait"] < 0.1
    assert waiter.seconds["data"] < 0.1


def test_seconds_and_spans_of_a_traced_step_agree_and_fill_the_time() -> None:
    config = tiny(trace__first_step=1, trace__steps=1)
    with threads(config, [batch_of(config)] * 2) as run:
        untraced = run.each(lambda runtime: runtime.run_step(0))
        assert all(report.trace is None for report in untraced.values())
        begin = time.perf_counter()
        reports = run.each(lambda runtime: runtime.run_step(1))
        wall_s = time.perf_counter() - begin
    for report in reports.values():
        trace = report.trace
        assert trace is not None
        for kind, seconds in report.seconds.items():
            spans = [s.end_s - s.start_s for s in trace.spans if s.kind == kind]
            assert seconds == pytest.approx(sum(spans), abs=1e-6)
        assert sum(report.seconds.values()) == pytest.approx(wall_s, rel=0.5, abs=0.05)
        labels = {span.label for span in trace.spans if span.kind == "compute"}
        assert any(label.startswith(("attn_bwd L1 m1", "experts_bwd L1 m1")) for label in labels)
        assert {hop.channel for hop in trace.hops} == {
            "A0>F0.act",
            "F0>A0.act",
            "A0>F0.grad",
            "F0>A0.grad",
        }


def test_a_stop_asked_of_one_worker_is_heard_by_all_in_the_same_step() -> None:
    config = tiny()
    with threads(config, [batch_of(config)] * 2) as run:
        assert not step(run, 0).report.stopped
        list(run.workers.values())[-1].request_stop()
        seen = step(run, 1)
    assert all(report.stopped for report in seen.reports.values())
    assert all(report.skipped == "" for report in seen.reports.values())


def test_no_evaluation_without_a_program() -> None:
    config = tiny()
    with (
        threads(config, [batch_of(config)]) as run,
        pytest.raises(AssertionError, match="no evaluation program"),
    ):
        run.each(WorkerRuntime.evaluate)
