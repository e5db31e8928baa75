"""Steps of whole runs against one process; most cases are faults that other systems had."""

import gc
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

from disagmoe.config.run import RunConfig
from disagmoe.data.batch import IGNORED, Batch
from disagmoe.runtime.step import WorkerRuntime
from disagmoe.runtime.threads import ThreadedRun
from disagmoe.schedule.layout import Side
from tests.unit.runtime.tiny import (
    assert_close,
    assert_equals_reference,
    batch_of,
    force_router,
    initial_values,
    one_step,
    reference,
    step,
    threads,
    tiny,
    values_of,
)


def bits_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# --- loss and its divisor ---


def unequal(config: RunConfig) -> Batch:
    """Three valid targets in the first micro-batch, one in the second (and no more)."""
    batch = batch_of(config)
    targets_BS = torch.full_like(batch.targets_BS, IGNORED)
    targets_BS[0, :3] = batch.tokens_BS[0, :3]
    targets_BS[3, 4] = batch.tokens_BS[3, 4]
    return Batch(batch.tokens_BS, targets_BS)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_loss_is_the_mean_over_the_valid_targets_of_the_step(size: int, workers: int) -> None:
    """torchtitan#2206: never a mean of means."""
    config = tiny(parallel__micro_batch_size=size, parallel__attention_workers=workers)
    batch = unequal(config)
    seen = one_step(config, batch)
    assert seen.report.valid_targets == 4
    assert_equals_reference(seen, reference(config, batch))
    # every cut gives the gradients of the uncut batch
    whole = reference(tiny(parallel__micro_batch_size=4), batch)
    assert_equals_reference(seen, whole)


@pytest.mark.parametrize("schedule", ["serial", "af_pipe", "ep_1f1b", "ep_overlap"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_gradients_do_not_depend_on_micro_batches_or_overlap(size: int, schedule: str) -> None:
    """torchtitan#2972, #1733: schedules that divide by the number of micro-batches."""
    config = tiny(parallel__micro_batch_size=size, parallel__schedule=schedule)
    assert_equals_reference(one_step(config), reference(config, batch_of(config)))


def test_equal_micro_batches_add_up_and_sums_begin_at_zero_on_both_sides() -> None:
    """torchtitan#3575: sums erased, or kept for the next step."""
    config = tiny(parallel__micro_batch_size=1, train__optimizer__lr=1e-30)
    batch = batch_of(config)
    four = Batch(batch.tokens_BS[:1].repeat(4, 1), batch.targets_BS[:1].repeat(4, 1))
    with threads(config, [four, four]) as run:
        first, second = step(run, 0), step(run, 1)
        sums = [
            grad for runtime in run.workers.values() for grad in runtime.parameters.grads.values()
        ]
        assert not any(bool(grad.any()) for grad in sums)
    one = tiny(parallel__micro_batch_size=1, train__global_batch_size=1)
    expected = reference(one, four.rows(0, 1))
    assert_equals_reference(first, expected)
    assert_equals_reference(second, expected)


def test_reported_loss_holds_no_other_term() -> None:
    """open_lm#255: cross-entropy is the same with and without the balancing loss."""
    weights = {"train__loss__z_coef": 0.0}
    without = one_step(tiny(train__loss__aux_coef=0.0, **weights)).report
    heavy = one_step(tiny(train__loss__aux_coef=5.0, **weights)).report
    assert heavy.loss == without.loss
    assert heavy.balance == without.balance > 0
    assert heavy.grad_norm != without.grad_norm


# --- nothing to learn from ---


def test_one_worker_without_valid_targets() -> None:
    """OLMo-core#657: all targets of one worker are ignored."""
    config = tiny(parallel__micro_batch_size=4, parallel__attention_workers=2)
    batch = batch_of(config)
    batch.targets_BS[2:] = IGNORED
    seen = one_step(config, batch)
    assert math.isfinite(seen.report.loss)
    assert_equals_reference(seen, reference(config, batch))


def test_a_step_without_valid_targets_is_skipped() -> None:
    """pytorch#70348: the mean over no target is not a number."""
    config = tiny()
    empty, good = batch_of(config), batch_of(config, seed=1)
    empty.targets_BS.fill_(IGNORED)
    with threads(config, [empty, good]) as run:
        before = values_of(run)
        skipped = step(run)
        assert skipped.report.skipped == "no valid target in the whole batch"
        assert (skipped.report.loss, skipped.report.valid_targets) == (0.0, 0)
        assert all(bool(grad.isfinite().all()) for grad in skipped.all_grads().values())
        assert all(bits_equal(skipped.values[worker], before[worker]) for worker in before)
        assert {r.update.optimizer.step_count for r in run.workers.values()} == {0}
        assert_equals_reference(step(run, 1), reference(config, good))


# --- evaluation ---


@pytest.mark.parametrize("sets", [{}, {"parallel__groups": 2, "parallel__rings": 2}])
def test_evaluation_does_not_depend_on_its_cut(sets: dict[str, object]) -> None:
    """torchtitan#1758, #2366: extra averaging in the validation loss."""
    losses = []
    for size, workers in ((1, 1), (4, 1), (3, 2)):
        config = tiny(
            train__eval__every=1,
            train__eval__sequences=5,
            parallel__micro_batch_size=size,
            parallel__attention_workers=workers,
            **sets,
        )
        held_out = batch_of(tiny(train__global_batch_size=5), seed=3)
        with threads(config, [batch_of(config)], [held_out.rows(0, 2), held_out.rows(2, 5)]) as run:
            reports = list(run.each(WorkerRuntime.evaluate).values())
        assert all(report == reports[0] for report in reports)
        losses.append(reports[0])
    whole = tiny(train__global_batch_size=5, parallel__micro_batch_size=5)
    expected = reference(whole, held_out).loss.item()
    for report in losses:
        assert_close(report.loss, expected, 1e-12)
        assert report.valid_targets == int((held_out.targets_BS != IGNORED).sum())


def test_evaluation_changes_nothing() -> None:
    config = tiny(train__eval__every=1, train__eval__sequences=4)
    batches = [batch_of(config, seed) for seed in range(2)]
    with threads(config, batches, [batch_of(config, 9)]) as run:
        step(run, 0)
        evaluated = [run.each(WorkerRuntime.evaluate) for _ in range(2)]
        with_evaluation = step(run, 1)
    with threads(config, batches) as run:
        step(run, 0)
        without = step(run, 1)
    assert evaluated[0] == evaluated[1]
    assert with_evaluation.report.loss == without.report.loss
    for worker, values in without.values.items():
        assert bits_equal(with_evaluation.values[worker], values)


# --- router and its losses ---


@pytest.mark.parametrize(
    "sets",
    [
        {"parallel__attention_workers": 2},
        {"parallel__attention_workers": 3, "parallel__groups": 2},
        {"parallel__schedule": "ep_overlap"},
        {"parallel__micro_batch_size": 1},
    ],
)
def test_gradient_of_the_sequence_balance_does_not_depend_on_the_layout(
    sets: dict[str, object],
) -> None:
    """Megatron-LM#5047, #5798: hidden factors of workers, micro-batches and tokens."""
    loss = {"train__loss__aux_coef": 1.0, "train__loss__z_coef": 0.0}
    batch = batch_of(tiny())
    batch.targets_BS[1:] = IGNORED
    seen = one_step(tiny(**loss, **sets), batch)
    assert_equals_reference(seen, reference(tiny(**loss, parallel__micro_batch_size=4), batch))


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


@pytest.mark.parametrize("scope", ["sequence", "micro_batch"])
def test_coefficient_zero_leaves_nothing_behind(scope: str) -> None:
    """megablocks#119: terms that are saved and never used."""
    config = tiny(
        train__loss__aux_coef=0.0,
        train__loss__z_coef=0.0,
        train__loss__aux_scope=scope,
        model__layers=1,
        train__global_batch_size=2,
    )
    batch = batch_of(config)

    def live_tensors() -> int:
        gc.collect()
        # not isinstance: it would touch lazy attributes of modules that are none of ours
        return sum(type(thing) is torch.Tensor for thing in gc.get_objects())

    with threads(config, [batch] * 120) as run:
        counts = []
        for number in range(120):
            run.each(lambda runtime, n=number: runtime.run_step(n))
            if number in (9, 119):
                counts.append(live_tensors())
                assert all(len(runtime._slots) == 0 for runtime in run.workers.values())
    assert counts[0] == counts[1]


@pytest.mark.parametrize("sets", [{}, {"parallel__groups": 2}, {"parallel__schedule": "ep_1f1b"}])
def test_router_learns_from_the_combine_weights_alone(sets: dict[str, object]) -> None:
    """Automodel#2995: the cut between processes must not cut the router's gradient."""
    config = tiny(
        train__loss__aux_coef=0.0,
        train__loss__z_coef=0.0,
        parallel__attention_workers=2,
        parallel__expert_workers=2,
        **sets,
    )
    seen = one_step(config)
    expected = reference(config, batch_of(config))
    assert_equals_reference(seen, expected)
    for layer in range(2):
        grad = seen.all_grads()[f"layers.{layer}.router.weight"]
        assert grad.norm() > 1e-3 * seen.report.grad_norm


# --- uneven counts ---


def all_to_expert_zero(config: RunConfig) -> torch.Tensor:
    """A router that every token takes to experts 0 and 1: logits 0 elsewhere are far lower."""
    return torch.zeros(config.model.experts, config.model.hidden, dtype=torch.float64)


@pytest.mark.parametrize(
    "sets",
    [
        {"parallel__expert_workers": 2},
        {"parallel__expert_workers": 4},
        {"parallel__expert_workers": 2, "parallel__groups": 2},
        {
            "parallel__schedule": "ep_overlap",
            "parallel__attention_workers": 2,
            "parallel__expert_workers": 2,
        },
    ],
)
def test_an_expert_worker_without_any_token(sets: dict[str, object]) -> None:
    """DeepSpeed#5066, Automodel#935: no hang, and gradients that are zero, not those of before."""
    config = tiny(train__optimizer__lr=1e-30, **sets)
    batch = batch_of(config)
    with threads(config, [batch, batch]) as run:
        step(run, 0)  # all experts have had gradients
        store = initial_values(config)
        force_router(run, store, all_to_expert_zero(config))  # ties go to the lowest experts
        seen = step(run, 1)
    assert all(row[2:] == (0, 0) for row in seen.report.choices_LE)
    assert_equals_reference(seen, reference(config, batch, store))
    for layer in range(config.model.layers):
        for expert in (2, 3):
            grads = [
                grad
                for name, grad in seen.all_grads().items()
                if name.startswith(f"layers.{layer}.experts.{expert}.")
            ]
            assert grads
            assert not any(bool(grad.any()) for grad in grads)


def test_an_expert_worker_without_tokens_in_one_micro_batch() -> None:
    config = tiny(
        parallel__expert_workers=4,
        parallel__micro_batch_size=1,
        model__top_k=1,
        train__sequence_length=1,
    )
    batch = batch_of(config)  # one token per micro-batch: three of four workers get none
    batch.targets_BS.fill_(3)
    seen = one_step(config, batch)
    assert all(sum(row) == 4 for row in seen.report.choices_LE)
    assert_equals_reference(seen, reference(config, batch))


@pytest.mark.parametrize("length", [1, 7, 65])
@pytest.mark.parametrize("groups", [1, 2])
def test_odd_lengths_and_a_short_last_micro_batch(length: int, groups: int) -> None:
    """Automodel#1365, DeepSpeed#5117: 10 sequences, micro-batches of 4, 2 workers."""
    config = tiny(
        train__global_batch_size=10,
        train__sequence_length=length,
        parallel__micro_batch_size=4,
        parallel__attention_workers=2,
        parallel__groups=groups,
    )
    assert_equals_reference(one_step(config), reference(config, batch_of(config)))


@pytest.mark.parametrize(
    "sets",
    [
        {"parallel__attention_workers": 3, "parallel__micro_batch_size": 2},
        {"parallel__attention_workers": 3, "parallel__micro_batch_size": 2, "parallel__groups": 2},
        {"parallel__rings": 3, "parallel__micro_batch_size": 1, "train__global_batch_size": 4},
        {
            "parallel__rings": 3,
            "parallel__micro_batch_size": 1,
            "train__global_batch_size": 4,
            "parallel__groups": 2,
            "parallel__schedule": "ep_1f1b",
        },
    ],
)
def test_fewer_sequences_than_workers(sets: dict[str, object]) -> None:
    """Workers without a sequence, and rings whose last micro-batch is empty."""
    config = tiny(**sets)
    assert_equals_reference(one_step(config), reference(config, batch_of(config)))


def test_sizes_that_coincide_do_not_hide_a_wrong_axis() -> None:
    """DeepSpeed#8195: hidden, tokens, rows and experts' widths are all 8."""
    config = tiny(
        model__experts=8,
        train__sequence_length=8,
        train__global_batch_size=1,
        parallel__micro_batch_size=1,
        parallel__expert_workers=2,
    )
    assert_equals_reference(one_step(config), reference(config, batch_of(config)))


@pytest.mark.parametrize(("attention", "experts"), [(2, 1), (1, 2)])
def test_expert_gradients_have_no_factor_of_workers(attention: int, experts: int) -> None:
    """pytorch#160285: gradients too large by the number of workers that feed an expert."""
    config = tiny(
        parallel__attention_workers=attention,
        parallel__expert_workers=experts,
    )
    grads = one_step(config).all_grads()
    expected = reference(config, batch_of(config)).grads
    for name, grad in expected.items():
        if ".experts." in name and grad.any():
            assert_close((grads[name].norm() / grad.norm()).item(), 1.0, 1e-10)


@pytest.mark.parametrize("sets", [{}, {"parallel__groups": 2, "parallel__rings": 2}])
def test_every_choice_is_counted_once(sets: dict[str, object]) -> None:
    config = tiny(parallel__attention_workers=2, parallel__expert_workers=2, **sets)
    report = one_step(config).report
    tokens = config.train.global_batch_size * config.train.sequence_length
    assert report.tokens == tokens
    assert [sum(row) for row in report.choices_LE] == [config.model.top_k * tokens] * 2


# --- norm, skips and updates ---


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
        self._original = parameters.accumulate
        self._parameters = parameters

        def accumulate(names: list[str], grads: list[torch.Tensor]) -> None:
            self._original(names, grads)
            which = parameters._second if self.second else parameters.grads
            next(iter(which.values())).view(-1)[0] = math.nan

        parameters.accumulate = accumulate  # type: ignore[method-assign, assignment]

    def __exit__(self, *_: object) -> None:
        self._parameters.accumulate = self._original  # type: ignore[method-assign]


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


# --- bits ---


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


@pytest.mark.parametrize("schedule", ["af_pipe", "ep_overlap"])
def test_tied_embeddings_equal_one_process(schedule: str) -> None:
    config = tiny(
        model__tied_embeddings=True, parallel__schedule=schedule, parallel__micro_batch_size=1
    )
    assert_equals_reference(one_step(config), reference(config, batch_of(config)))


BF16_ROUNDING = 2.0**-8


@pytest.mark.parametrize(
    "sets",
    [
        {},
        {"parallel__attention_workers": 2, "parallel__expert_workers": 2},
        {"parallel__groups": 2, "parallel__residual": "direct"},
        {"parallel__groups": 2},
        {"parallel__schedule": "ep_1f1b"},
    ],
)
def test_bf16_is_within_its_rounding_of_fp32(sets: dict[str, object]) -> None:
    """Each of the 2 layers rounds the residual stream about four times (attention, experts, and
    what travels), each time by at most 2^-9 of it; the loss moves by no more than that share of
    the logits' size, which is about the loss's own here."""
    exact = reference(tiny(train__precision="fp32"), batch_of(tiny())).loss.item()
    config = tiny(train__precision="bf16", **sets)
    seen = one_step(config)
    bound = 2 * 4 * BF16_ROUNDING
    assert_close(seen.report.loss, exact, bound)
    one_process = reference(config, batch_of(config))
    assert_close(seen.report.loss, one_process.loss.item(), bound)
    assert {grad.dtype for grad in seen.all_grads().values()} == {torch.float32}


# --- time ---


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
    assert waiter.seconds["recv_wait"] >= 0.15  # idle waiting of experts for attention shows
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
            assert seconds == pytest.approx(sum(spans), abs=5e-3)
        assert sum(report.seconds.values()) == pytest.approx(wall_s, rel=0.5, abs=0.05)
        labels = {span.label for span in trace.spans if span.kind == "compute"}
        assert any(label.startswith(("attn_bwd L1 m1", "experts_bwd L1 m1")) for label in labels)
        assert {hop.channel for hop in trace.hops} == {
            "A0>F0.act",
            "F0>A0.act",
            "A0>F0.grad",
            "F0>A0.grad",
        }


# --- stop ---


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
