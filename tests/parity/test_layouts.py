"""Whole steps of many layouts against one process: values, not shapes. All in fp64 unless said."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

from disagmoe.data.batch import IGNORED, Batch
from disagmoe.model import names
from disagmoe.runtime.step import WorkerRuntime
from tests.parity.layout_cases import LAYOUTS, few_layouts, layouts
from tests.unit.runtime import tiny as t
from tests.unit.runtime.tiny import tiny

# Loss, labels, accumulation


@layouts
def test_a_step_equals_one_process(layout: dict[str, Any]) -> None:
    config = tiny(**layout)
    batch = t.batch_of(config)
    t.assert_equals_reference(t.one_step(config, batch), t.reference(config, batch))


@few_layouts
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_micro_batches_change_nothing(layout: dict[str, Any], size: int) -> None:
    """torchtitan#1732, #2972: gradients scaled by the number of micro-batches."""
    config = tiny(**layout, parallel__micro_batch_size=size)
    batch = t.batch_of(config)
    whole = t.reference(tiny(**layout, parallel__micro_batch_size=4), batch)
    t.assert_equals_reference(t.one_step(config, batch), whole)


def constant_losses(run: t.ThreadedRun, losses: list[float]) -> None:
    """Make the loss of target v `losses[v]` at every token: all tokens are embedded alike, nothing
    is added to them, and the head is log p."""
    chances_V = torch.tensor(losses, dtype=torch.float64).neg().exp()
    rest = run_vocabulary(run) - len(losses)
    logits_V = torch.cat([chances_V, ((1 - chances_V.sum()) / rest).expand(rest)]).log()
    for runtime in run.workers.values():
        for name, value in runtime.parameters.global_values().items():
            if name == names.EMBED:
                value.fill_(1.0)
            elif name == names.HEAD:
                eps, hidden = 1e-6, value.shape[1]  # ModelConfig.norm_eps
                value.copy_((logits_V * (1 + eps) ** 0.5 / hidden)[:, None].expand_as(value))
            elif name.endswith((".attn.o.weight", ".down.weight")):
                value.zero_()


def run_vocabulary(run: t.ThreadedRun) -> int:
    stores = [runtime.parameters.global_values() for runtime in run.workers.values()]
    return len(next(store[names.EMBED] for store in stores if names.EMBED in store))


@pytest.mark.parametrize(
    "layout",
    [{"parallel__micro_batch_size": 1}, {"parallel__attention_workers": 2}],
    ids=["two micro-batches", "two workers"],
)
def test_tokens_weigh_alike_wherever_they_are(layout: dict[str, Any]) -> None:
    """torchtitan#2206, transformers#34191: three tokens of loss 2 and one of loss 8 are 3.5 on
    average; the mean of means is 5."""
    config = tiny(train__global_batch_size=2, train__sequence_length=3, **layout)
    targets_BS = torch.tensor([[0, 0, 0], [1, IGNORED, IGNORED]])
    with t.threads(config, [Batch(torch.zeros_like(targets_BS), targets_BS)]) as run:
        constant_losses(run, [2.0, 8.0])
        seen = t.step(run)
    for report in seen.reports.values():
        t.assert_close(report.loss, 3.5, 1e-12)
        assert (report.valid_targets, report.tokens) == (4, 6)


def test_identical_micro_batches_add_up_to_one() -> None:
    """torchtitan#3575: sums that are erased between micro-batches."""
    one = t.batch_of(tiny(train__global_batch_size=1, parallel__micro_batch_size=1))
    four = Batch(one.tokens_BS.repeat(4, 1), one.targets_BS.repeat(4, 1))
    single = tiny(train__global_batch_size=1, parallel__micro_batch_size=1)
    seen = t.one_step(tiny(parallel__micro_batch_size=1, parallel__expert_workers=2), four)
    t.assert_equals_reference(seen, t.reference(single, one))


@few_layouts
def test_sums_start_anew_after_a_step_on_both_sides(layout: dict[str, Any]) -> None:
    config = tiny(**layout)
    batch = t.batch_of(config)
    with t.threads(config, [batch, batch]) as run:
        first = t.step(run, 0)
        for runtime in run.workers.values():
            assert not any(bool(grad.any()) for grad in runtime.parameters.grads.values())
        second = t.step(run, 1)
    store = t.store_of(config, first)
    t.assert_equals_reference(second, t.reference(config, batch, store))


def test_evaluation_is_independent_of_the_layout_and_leaves_no_trace() -> None:
    """torchtitan#1758, #2366: averages of averages in validation."""
    evaluated = {"train__eval__every": 1, "train__eval__sequences": 7}
    base = tiny(**evaluated)
    held_out = [t.batch_of(base, seed) for seed in (7, 8)]
    held_out[1] = held_out[1].rows(0, 3)
    whole = Batch(
        torch.cat([part.tokens_BS for part in held_out]),
        torch.cat([part.targets_BS for part in held_out]),
    )
    expected = t.reference(tiny(train__global_batch_size=7, parallel__micro_batch_size=7), whole)
    valid = int((whole.targets_BS != IGNORED).sum())
    for layout, size in (("M2 N1", 1), ("p2 M2 N2 fused", 4), ("colocated 2", 3)):
        config = tiny(**evaluated, **LAYOUTS[layout], parallel__micro_batch_size=size)
        batches = [t.batch_of(config)] * 2
        with t.threads(config, batches) as run:
            undisturbed = [t.step(run, number) for number in range(2)]
        with t.threads(config, batches, held_out) as run:
            rng = torch.get_rng_state()
            before = run.each(lambda runtime: runtime.evaluate())
            first = t.step(run, 0)
            moments = optimizer_states(run)
            again = run.each(lambda runtime: runtime.evaluate())
            assert optimizer_states(run) == moments
            for runtime in run.workers.values():
                assert not any(bool(g.any()) for g in runtime.parameters.grads.values())
            second = t.step(run, 1)
            assert torch.equal(torch.get_rng_state(), rng)
        for report in before.values():
            t.assert_close(report.loss, expected.loss.item(), 1e-12)
            assert report.valid_targets == valid
        assert {report.loss for report in again.values()} != {
            report.loss for report in before.values()
        }
        t.assert_same_bits(first, undisturbed[0])
        t.assert_same_bits(second, undisturbed[1])


def optimizer_states(run: t.ThreadedRun) -> list[tuple[int, str, list[float], list[float]]]:
    return [
        (
            runtime.update.optimizer.step_count,
            name,
            state.exp_avg.tolist(),
            state.exp_avg_sq.tolist(),
        )
        for runtime in run.workers.values()
        for name, state in runtime.update.optimizer.states.items()
    ]


def test_a_worker_whose_targets_are_all_ignored() -> None:
    """pytorch#75181, OLMo-core#657: the mean over no target is not a number."""
    config = tiny(parallel__attention_workers=2, parallel__micro_batch_size=4)
    batch = t.batch_of(config)
    batch.targets_BS[2:] = IGNORED  # the part of the second worker
    seen = t.one_step(config, batch)
    t.assert_equals_reference(seen, t.reference(config, batch))
    alone = tiny(train__global_batch_size=2)
    t.assert_close(seen.report.loss, t.reference(alone, batch.rows(0, 2)).loss.item(), 1e-12)


@few_layouts
def test_a_step_without_any_target_is_skipped(layout: dict[str, Any]) -> None:
    config = tiny(**layout)
    batch = t.batch_of(config)
    nothing = Batch(batch.tokens_BS, torch.full_like(batch.targets_BS, IGNORED))
    with t.threads(config, [nothing, batch]) as run:
        before = t.values_of(run)
        seen = t.step(run, 0)
        after = t.step(run, 1)
        counts = {runtime.update.optimizer.step_count for runtime in run.workers.values()}
    for report in seen.reports.values():
        assert report.skipped == "no valid target in the whole batch"
        assert (report.loss, report.valid_targets) == (0.0, 0)
        assert report.grad_norm < float("inf")
    t.assert_same_tensors(seen.values, before)
    t.assert_equals_reference(after, t.reference(config, batch))
    assert counts == {1}


def test_the_reported_loss_is_the_cross_entropy_alone() -> None:
    """open_lm#255: the balancing loss mixed into the reported one."""
    off = t.one_step(tiny(train__loss__aux_coef=0.0, train__loss__z_coef=0.0))
    on = t.one_step(tiny(train__loss__aux_coef=0.01, train__loss__z_coef=0.1))
    for what in ("loss", "balance", "z"):
        assert getattr(on.report, what) == getattr(off.report, what) > 0
    assert on.report.grad_norm != off.report.grad_norm


# Auxiliary losses


def router_grads(seen: t.Seen) -> torch.Tensor:
    grads = seen.all_grads()
    return torch.stack([grads[name] for name in sorted(grads) if name.endswith(".router.weight")])


def balance_alone(batch: Batch, **sets: Any) -> torch.Tensor:
    """Router gradients where the balancing loss is all there is: a head of zeros gives the rest of
    the network no gradient."""
    config = tiny(train__loss__aux_coef=1.0, train__loss__z_coef=0.0, **sets)
    with t.threads(config, [batch]) as run:
        for runtime in run.workers.values():
            if names.HEAD in runtime.parameters.global_values():
                runtime.parameters.global_values()[names.HEAD].zero_()
        return router_grads(t.step(run))


def test_balance_per_sequence_does_not_depend_on_the_layout() -> None:
    """Megatron-LM#5047, #5798, Automodel#3359: a hidden factor of micro-batches or workers."""
    batch = t.batch_of(tiny())
    expected = balance_alone(batch, parallel__micro_batch_size=4)
    assert expected.norm() > 1e-3
    for size in (1, 2, 4):
        for workers in (1, 2, 3):
            seen = balance_alone(
                batch, parallel__micro_batch_size=size, parallel__attention_workers=workers
            )
            assert (seen - expected).norm() <= 1e-12 * expected.norm()


def test_balance_of_the_whole_step_does_not_depend_on_the_layout() -> None:
    """Megatron-LM#3672: the definition is that of one batch, whoever holds its parts."""
    batch = t.batch_of(tiny())
    scope: dict[str, Any] = {"train__loss__aux_scope": "global"}
    expected = balance_alone(batch, parallel__micro_batch_size=4, **scope)
    one = balance_alone(
        batch, parallel__micro_batch_size=4, train__loss__aux_scope="micro_batch"
    )  # the same where the micro-batch is the step
    assert (one - expected).norm() <= 1e-12 * expected.norm()
    layouts: list[dict[str, Any]] = [
        {"parallel__micro_batch_size": size, "parallel__attention_workers": workers}
        for size in (1, 2, 4)
        for workers in (1, 2, 3)
    ]
    rings: list[dict[str, Any]] = [
        {"parallel__rings": rings, "parallel__groups": groups} for rings, groups in ((2, 1), (3, 2))
    ]
    for layout in layouts + rings:
        seen = balance_alone(batch, **layout, **scope)
        assert (seen - expected).norm() <= 1e-12 * expected.norm()


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("schedule", ["af_pipe", "ep_overlap"])
def test_balance_per_micro_batch_equals_the_same_cut(workers: int, schedule: str) -> None:
    sets: dict[str, Any] = {"train__loss__aux_scope": "micro_batch", "train__loss__aux_coef": 0.5}
    config = tiny(
        **sets,
        parallel__schedule=schedule,
        parallel__attention_workers=workers,
        parallel__expert_workers=workers,
        train__global_batch_size=5,
        parallel__micro_batch_size=3,
    )
    batch = t.batch_of(config)
    expected = t.reference(config, batch)
    t.assert_equals_reference(t.one_step(config, batch), expected)
    other = tiny(**sets, train__global_batch_size=5, parallel__micro_batch_size=1)
    assert abs(t.reference(other, batch).balance - expected.balance) > 1e-3


def test_the_balance_of_gpt_oss_stays_at_its_least_value() -> None:
    """Automodel#1559: raw logits taken for probabilities gave a loss of -80 after 80 steps."""
    config = tiny(
        model__family="gpt_oss",
        model__layers=1,
        parallel__micro_batch_size=4,
        train__loss__aux_coef=1e-2,
    )
    with t.threads(config, [t.batch_of(config)] * 100) as run:
        values = [t.step(run, number).report.balance for number in range(100)]
    assert min(values) > 0.9  # 1 where routing is uniform, somewhat less by chance


def test_no_memory_grows_without_balance() -> None:
    """megablocks#113: saved terms that nobody clears."""
    config = tiny(model__layers=1, parallel__micro_batch_size=4, train__loss__aux_coef=0.0)
    with t.threads(config, [t.batch_of(config)] * 200) as run:
        alive = []
        for number in range(200):
            run.each(lambda runtime, number=number: runtime.run_step(number))  # type: ignore[misc]
            if number in (49, 199):
                gc.collect()
                alive.append(sum(type(o) is torch.Tensor for o in gc.get_objects()))
    assert alive[0] == alive[1]


# Router


@pytest.mark.parametrize("renormalise", [True, False])
@few_layouts
def test_the_router_learns_through_the_gates_alone(
    layout: dict[str, Any], renormalise: bool
) -> None:
    """Automodel#2995: gate weights that travel as data, and a router trained by aux losses only."""
    config = tiny(
        **layout,
        train__loss__aux_coef=0.0,
        train__loss__z_coef=0.0,
        model__norm_topk_prob=renormalise,
    )
    batch = t.batch_of(config)
    grads = t.one_step(config, batch).all_grads()
    name = "layers.0.router.weight"
    direction = grads[name] / grads[name].norm()
    losses = []
    for sign in (1, -1):
        store = t.initial_values(config)
        store[name] = store[name] + sign * 1e-5 * direction
        losses.append(t.reference(config, batch, store).loss.item())
    slope = (losses[0] - losses[1]) / 2e-5
    assert grads[name].norm() > 1e-4
    t.assert_close(grads[name].norm().item(), slope, 1e-6)


@few_layouts
def test_forced_balance_sends_each_token_to_the_same_experts_in_every_layout(
    layout: dict[str, Any],
) -> None:
    config = tiny(**layout, model__forced_balance=True)
    batch = t.batch_of(config)
    t.assert_equals_reference(t.one_step(config, batch), t.reference(config, batch))


# Promise of bits, precision


@pytest.mark.parametrize("schedule", ["af_pipe", "ep_overlap"])
@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_tied_embeddings_have_equal_bits_at_any_depth(schedule: str, precision: str) -> None:
    sets: dict[str, Any] = {
        "model__tied_embeddings": True,
        "train__precision": precision,
        "parallel__micro_batch_size": 1,
    }
    base = tiny(**sets, parallel__schedule="serial")
    batch = t.batch_of(base)
    first = t.one_step(base, batch)
    t.assert_equals_reference(
        first, t.reference(base, batch), tolerance=1e-10 if precision == "fp64" else 1e-5
    )
    for depth in (2, 3, 4):
        config = tiny(**sets, parallel__schedule=schedule, parallel__in_flight=depth)
        t.assert_same_bits(t.one_step(config, batch), first)


@pytest.mark.parametrize("layout", ["M1 N2", "p2 direct", "p3 N2 fused"])
def test_bf16_routes_alike_and_has_the_same_loss(layout: str) -> None:
    """bf16 keeps 8 bits. A layer rounds the residual stream, the rows and the partial sums of the
    experts: some 4 roundings of 2^-9 per layer, so hidden states differ by under 2^-5 after 4
    layers, logits of size 1 by as much, and the mean loss, where errors of tokens mostly cancel, by
    less than 1e-2. Probabilities further apart than 2^-5 must keep their order."""
    config = tiny(**LAYOUTS[layout], train__precision="bf16")
    batch = t.batch_of(config)
    expected = t.reference(config, batch)
    with t.threads(config, [batch]) as run:
        recordings = run.each(lambda runtime: runtime.record())
        (report, *_) = run.each(lambda runtime: runtime.run_step(0)).values()
    assert abs(report.loss - expected.loss.item()) <= 1e-2 * expected.loss.item()
    compared = 0
    for recording in recordings.values():
        for (layer, mb), chosen_TK in recording.choices.items():
            routing = expected.routing[mb][layer]
            ordered_TE = routing.probs_TE.sort(descending=True).values
            clear_T = (ordered_TE[:, :2] - ordered_TE[:, 1:3]).amin(dim=1) > 2**-5
            assert torch.equal(chosen_TK[clear_T], routing.expert_TK[clear_T])
            compared += int(clear_T.sum())
    assert compared > 20


# The end of a step


@pytest.mark.parametrize("rings", [1, 2])
def test_one_norm_over_both_sides(rings: int) -> None:
    """Automodel#3816, DeepSpeed#8475: attention gradients of squared norm 25, held by two workers,
    and expert gradients of 20 and 100 have the norm 12.0416; 13.0384 counts attention twice."""
    config = tiny(
        parallel__attention_workers=2,
        parallel__expert_workers=2,
        parallel__rings=rings,
        train__optimizer__clip_norm=1.0,
    )
    squares = {"A0": 25.0, "F0.0": 20.0, "F0.1": 100.0}
    summed: dict[str, float] = {}

    def plant(name: str, runtime: WorkerRuntime) -> None:
        """Give one element all of the gradient, each replica its part of it."""
        kind = name.removeprefix("r1.")
        replicas = 2 * rings if kind.startswith("A0") else rings
        whole = squares.get(kind, squares["A0"]) ** 0.5
        for segment in runtime.parameters.segments.values():
            segment.flat_grad.zero_()[-1:] = whole / replicas
        summed[name] = whole

    with t.threads(config, [t.batch_of(config)]) as run:
        for worker, runtime in run.workers.items():
            reduce = runtime.update.reduce

            def planted(
                name: str = str(worker),
                runtime: WorkerRuntime = runtime,
                reduce: Callable[[], None] = reduce,
            ) -> None:
                plant(name, runtime)
                reduce()

            runtime.update.reduce = planted  # type: ignore[method-assign]
        seen = t.step(run)
        norms = {report.grad_norm for report in seen.reports.values()}
        moments: dict[str, float] = {}
        for worker, runtime in run.workers.items():
            for state in runtime.update.optimizer.states.values():
                largest = state.exp_avg.abs().max().item()
                moments[str(worker)] = max(moments.get(str(worker), 0.0), largest)
    (norm,) = norms
    assert norm == pytest.approx(12.0416, abs=5e-5)
    # all gradients are clipped by the same factor, 0.08305; beta1 is 0.9
    for name, moment in moments.items():
        if moment:
            t.assert_close(moment / (0.1 * summed[name]), 1 / norm, 1e-12)
    assert sum(moment > 0 for moment in moments.values()) == 3
