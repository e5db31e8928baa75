"""Rows on their way: no tokens, all tokens, odd sizes, large messages; against one process."""

from typing import Any

import pytest
import torch

from disagmoe.errors import DataError, WorkerError
from disagmoe.model import names
from disagmoe.runtime.invariance.fleet import ProcessFleet
from disagmoe.schedule.layout import HOPS
from tests.parity.layout_cases import LAYOUTS
from tests.unit.runtime import tiny as t
from tests.unit.runtime.tiny import tiny

# Dispatch, experts, combine


@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("schedule", ["af_pipe", "ep_overlap"])
@pytest.mark.parametrize("groups", [1, 2])
def test_expert_workers_without_any_token(top_k: int, schedule: str, groups: int) -> None:
    """DeepSpeed#5066, torchtitan#1166: with a router of zeros the lowest experts win all tokens, so
    the last worker gets none. Its gradients are zeros and not those of the step before."""
    config = tiny(
        model__top_k=top_k,
        parallel__schedule=schedule,
        parallel__groups=groups,
        parallel__attention_workers=2,
        parallel__expert_workers=2,
    )
    batch = t.batch_of(config)
    with t.threads(config, [batch, batch]) as run:
        first = t.step(run, 0)
        store = t.store_of(config, first)
        t.force_router(run, store, torch.zeros(4, 8, dtype=torch.float64))
        seen = t.step(run, 1)
    t.assert_equals_reference(seen, t.reference(config, batch, store))
    tokens = batch.tokens_BS.numel()
    assert seen.report.choices_LE == ((tokens,) * top_k + (0,) * (4 - top_k),) * 2
    idle = [name for name in seen.all_grads() if ".experts.2." in name or ".experts.3." in name]
    assert len(idle) == 12
    for name in idle:
        assert bool(first.all_grads()[name].any()), name
        assert not bool(seen.all_grads()[name].any()), name


@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"parallel__groups": 2, "parallel__residual": "fused"},
        {"parallel__groups": 2, "parallel__residual": "direct"},
        {"parallel__schedule": "ep_overlap", "parallel__attention_workers": 4},
    ],
    ids=["p1", "p2 fused", "p2 direct", "colocated"],
)
def test_a_host_without_any_token(top_k: int, layout: dict[str, Any]) -> None:
    """Two hops: all tokens go to the first host of two, whose workers have an expert each."""
    sizes = {"parallel__attention_workers": 2, "parallel__expert_workers": 4} | layout
    config = tiny(
        model__top_k=top_k, parallel__dedupe="node", parallel__workers_per_host=2, **sizes
    )
    batch = t.batch_of(config)
    with t.threads(config, [batch, batch]) as run:
        store = t.store_of(config, t.step(run, 0))
        t.force_router(run, store, torch.zeros(4, 8, dtype=torch.float64))
        seen = t.step(run, 1)
    t.assert_equals_reference(seen, t.reference(config, batch, store))
    tokens = batch.tokens_BS.numel()
    assert seen.report.choices_LE == ((tokens,) * top_k + (0,) * (4 - top_k),) * 2
    inter, intra = (sum(one.hops[hop].rows for one in seen.reports.values()) for hop in HOPS)
    assert (inter, intra) == (2 * tokens, 2 * tokens * top_k)


def test_all_tokens_to_one_expert_of_many_workers() -> None:
    config = tiny(model__top_k=1, parallel__expert_workers=4, parallel__attention_workers=2)
    batch = t.batch_of(config)
    with t.threads(config, [batch]) as run:
        store = t.initial_values(config)
        t.force_router(run, store, torch.zeros(4, 8, dtype=torch.float64))
        seen = t.step(run)
    t.assert_equals_reference(seen, t.reference(config, batch, store))
    assert seen.report.choices_LE == ((20, 0, 0, 0),) * 2


def test_an_expert_worker_without_tokens_in_one_micro_batch() -> None:
    config = tiny(
        model__layers=1,
        train__global_batch_size=6,
        parallel__expert_workers=2,
        parallel__attention_workers=2,
    )
    # even tokens are embedded to the right, odd ones to the left, and the router follows
    batch = t.batch_of(config)
    batch.tokens_BS[2:4] -= batch.tokens_BS[2:4] % 2
    side_V = torch.where(torch.arange(17) % 2 == 0, 4.0, -4.0).double()
    router_ED = torch.zeros(4, 8, dtype=torch.float64)
    router_ED[:, 0] = torch.tensor([2.0, 1.5, -1.5, -2.0])
    with t.threads(config, [batch]) as run:
        store = t.initial_values(config)
        t.force_router(run, store, router_ED)
        for values in [store, *(r.parameters.global_values() for r in run.workers.values())]:
            for name, value in values.items():
                if name == names.EMBED:
                    value[:, 0] = side_V
                elif name.endswith(".attn.o.weight"):
                    value.zero_()
        seen = t.step(run)
    expected = t.reference(config, batch, store)
    chosen = [routing.expert_TK for (routing,) in expected.routing]
    assert [bool((expert_TK >= 2).any()) for expert_TK in chosen] == [True, False, True]
    t.assert_equals_reference(seen, expected)


@pytest.mark.parametrize("length", [1, 7, 65])
@pytest.mark.parametrize("layout", ["M2 N1", "p2 M2 N2 fused", "colocated 2"])
def test_odd_lengths_and_a_short_last_micro_batch(layout: str, length: int) -> None:
    """Tutel#173, Automodel#1365: 10 sequences in micro-batches of 4 on two workers."""
    config = tiny(
        **LAYOUTS[layout],
        train__global_batch_size=10,
        train__sequence_length=length,
        parallel__micro_batch_size=4,
    )
    batch = t.batch_of(config)
    t.assert_equals_reference(t.one_step(config, batch), t.reference(config, batch))


@pytest.mark.parametrize("layout", ["M3 N3", "p3 M3 N1 direct"])
def test_fewer_sequences_than_workers(layout: str) -> None:
    config = tiny(**LAYOUTS[layout], train__global_batch_size=1, parallel__micro_batch_size=1)
    batch = t.batch_of(config)
    t.assert_equals_reference(t.one_step(config, batch), t.reference(config, batch))


def test_a_batch_that_is_a_little_short_is_exact() -> None:
    config = tiny(parallel__attention_workers=2, parallel__micro_batch_size=2)
    batch = t.batch_of(config).rows(0, 3)
    t.assert_equals_reference(t.one_step(config, batch), t.reference(config, batch))


@pytest.mark.parametrize(("sequences", "cut"), [(2, 1), (6, 3)])
def test_a_batch_of_another_size_is_refused_before_the_step(sequences: int, cut: int) -> None:
    config = tiny(parallel__attention_workers=2)
    full = t.batch_of(tiny(train__global_batch_size=8))
    with (
        t.threads(config, [full.rows(0, sequences)]) as run,
        pytest.raises(
            DataError,
            match=f"{sequences} sequences make {cut} micro-batches of at most 2.* made for 2",
        ),
    ):
        run.each(lambda runtime: runtime.run_step(0))


def test_shapes_that_coincide() -> None:
    """DeepSpeed#8195: sliced along the wrong axis, and the number of elements still fits."""
    config = tiny(
        model__experts=8,
        model__heads=4,
        model__kv_heads=4,
        model__head_dim=2,
        train__sequence_length=8,
        train__global_batch_size=8,
        parallel__micro_batch_size=8,
        parallel__attention_workers=2,
        parallel__expert_workers=2,
    )
    batch = t.batch_of(config)
    t.assert_equals_reference(t.one_step(config, batch), t.reference(config, batch))


@pytest.mark.parametrize(
    ("attention", "experts"), [(2, 1), (1, 2), (3, 2)], ids=["2 feed 1", "1 feeds 2", "3 feed 2"]
)
def test_expert_gradients_have_the_scale_of_the_global_mean(attention: int, experts: int) -> None:
    """pytorch#160285, DeepSpeed#6546: Adam hides a wrong factor, so compare gradients."""
    config = tiny(parallel__attention_workers=attention, parallel__expert_workers=experts)
    batch = t.batch_of(config)
    grads, expected = t.one_step(config, batch).all_grads(), t.reference(config, batch).grads
    for name in (name for name in expected if ".experts." in name):
        t.assert_close((grads[name].norm() / expected[name].norm()).item(), 1.0, 1e-12)


def test_choices_add_up_in_every_step() -> None:
    """Megatron-LM's race on counts: every token makes K choices, each on the expert that the
    reference says."""
    config = tiny(parallel__attention_workers=2, parallel__expert_workers=2, parallel__groups=2)
    batches = [t.batch_of(config, seed) for seed in range(8)]
    with t.threads(config, batches) as run:
        values = t.values_of(run)
        for number, batch in enumerate(batches):
            store = t.store_of(config, t.Seen({}, {}, values))
            expected = t.reference(config, batch, store)
            layers = zip(*expected.routing, strict=True)
            counts = [sum(part.count_choices() for part in layer).tolist() for layer in layers]
            seen = t.step(run, number)
            assert [list(layer) for layer in seen.report.choices_LE] == counts
            assert {sum(layer) for layer in seen.report.choices_LE} == {2 * 20}
            values = seen.values


# Transport


def test_large_messages_in_both_directions_do_not_block() -> None:
    """ray#45594, nccl#479: attention sends one micro-batch forward while the experts send another
    one back. Inproc completes no send before its receive is posted, whatever its size."""
    config = tiny(
        model__hidden=64,
        train__sequence_length=128,
        train__global_batch_size=8,
        parallel__micro_batch_size=2,
        parallel__in_flight=4,
        parallel__attention_workers=2,
        parallel__expert_workers=3,
    )
    batch = t.batch_of(config)
    with t.threads(config, [batch]) as run:
        seen = t.step(run)
        sent = {
            name: traffic.nbytes / traffic.messages
            for report in seen.reports.values()
            for name, traffic in report.traffic.items()
        }
    t.assert_equals_reference(seen, t.reference(config, batch))
    payloads = {"A0>F0.act", "F0>A0.act", "A0>F0.grad", "F0>A0.grad"}
    assert min(sent[name] for name in payloads) > 20_000


@pytest.mark.gloo
@pytest.mark.slow
def test_large_messages_over_sockets() -> None:
    """The same with messages beyond what sockets and gloo buffer."""
    config = tiny(
        model__hidden=512,
        model__layers=1,
        train__precision="fp32",
        train__sequence_length=2048,
        train__global_batch_size=8,
        parallel__micro_batch_size=2,
        parallel__in_flight=4,
        parallel__attention_workers=2,
        parallel__expert_workers=2,
    )
    batch = t.batch_of(config)
    fleet = ProcessFleet(config.parallel.workers)
    try:
        (seen,) = fleet.run(config, [batch], [None])
    finally:
        fleet.close()
    expected = t.reference(config, batch).loss.item()
    for observation in seen.values():
        t.assert_close(observation.report.loss, expected, 1e-5)


def test_rows_for_oneself_are_no_messages() -> None:
    """ray#46673: sends between roles on one worker hang."""
    alone = tiny(parallel__schedule="ep_overlap")
    with t.threads(alone, [t.batch_of(alone)]) as run:
        seen = t.step(run)
    t.assert_equals_reference(seen, t.reference(alone, t.batch_of(alone)))
    assert [report.traffic for report in seen.reports.values()] == [{}]


def test_a_worker_that_fails_ends_the_step_of_all() -> None:
    config = tiny(**LAYOUTS["p2 M2 N2 fused"])
    with t.threads(config, [t.batch_of(config)]) as run:
        run.hub.fail("F1.1", "its host is gone")
        with pytest.raises(WorkerError, match=r"F1\.1 has died: its host is gone"):
            run.each(lambda runtime: runtime.run_step(0))
