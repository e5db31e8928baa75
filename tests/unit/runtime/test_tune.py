"""A config tuned by traces; and that tuning a run under way changes none of its bits."""

from collections.abc import Mapping

import pytest

from disagmoe.config.costs import CostsConfig
from disagmoe.config.run import RunConfig
from disagmoe.runtime.clock import Span
from disagmoe.runtime.threads import ThreadedRun
from disagmoe.runtime.trace import Hop, WorkerTrace
from disagmoe.runtime.tune import Tuned, tune
from disagmoe.schedule.accounting import Kind
from disagmoe.schedule.costs import OpCosts
from disagmoe.schedule.from_config import compile_for
from tests.unit.runtime.tiny import assert_same_tensors, batch_of, threads, tiny, values_of


def attention(seconds: float) -> WorkerTrace:
    return WorkerTrace(1, (Span(Kind.COMPUTE, "attn_fwd L0 m0", 0.0, seconds),), ())


def experts(seconds: float, rows_bytes: int = 100) -> WorkerTrace:
    return WorkerTrace(
        1,
        (Span(Kind.COMPUTE, "experts_fwd L0 m0", 0.0, seconds),),
        (Hop("A0>F0.act", "L0 m0", False, rows_bytes, 0.0, 1.0),),
    )


def tuned(sets: Mapping[str, object], **workers: WorkerTrace) -> Tuned:
    config = tiny(**{"train__global_batch_size": 64, "parallel__profile": "on"} | sets)
    return tune(config, [{name.replace("_", "."): trace for name, trace in workers.items()}])


def test_costs_and_depth_follow_from_what_was_measured() -> None:
    found = tuned({}, A0_0=attention(2.0), F0_0=experts(8.0))
    assert found.seconds == {"attn_fwd": 2.0, "experts_fwd": 8.0, "rows": 1.0}
    parallel = found.config.parallel
    assert parallel.costs == CostsConfig(**OpCosts.from_seconds(found.seconds).to_dict())
    assert (parallel.profile, parallel.in_flight) == ("off", 4)
    assert (parallel.attention_shares, found.expert_shares) == ([], [])


@pytest.mark.parametrize(("sets", "in_flight"), [({"max_in_flight": 3}, 3), ({"in_flight": 7}, 7)])
def test_a_depth_that_is_given_or_limited_stays(sets: dict[str, int], in_flight: int) -> None:
    given = {f"parallel__{name}": value for name, value in sets.items()}
    found = tuned(given, A0_0=attention(2.0), F0_0=experts(8.0))
    assert found.config.parallel.in_flight == in_flight


TWO = {"parallel__attention_workers": 2, "parallel__micro_batch_size": 6}


def test_a_slow_attention_worker_gets_fewer_sequences_and_costs_are_those_of_then() -> None:
    found = tuned(TWO, A0_0=attention(3.0), A0_1=attention(6.0), F0_0=experts(1.0))
    assert found.config.parallel.attention_shares == [0.667, 0.333]
    assert found.seconds["attn_fwd"] == pytest.approx(4.0)  # 4 instead of 3; 2 instead of 3


def test_equal_workers_and_given_shares_keep_theirs() -> None:
    workers = {"A0_0": attention(3.0), "A0_1": attention(3.1), "F0_0": experts(1.0)}
    assert tuned(TWO, **workers).config.parallel.attention_shares == []
    given = TWO | {"parallel__attention_shares": [1, 5]}
    assert tuned(given, **workers).config.parallel.attention_shares == [1, 5]


def test_shares_of_experts_are_advice_by_the_work_that_came() -> None:
    sets = {"parallel__expert_workers": 2, "model__experts": 8}
    found = tuned(sets, A0_0=attention(1.0), F0_0=experts(2.0), F0_1=experts(6.0))
    assert found.expert_shares == [0.75, 0.25]
    assert found.config.parallel.expert_shares == []
    busier = tuned(sets, A0_0=attention(1.0), F0_0=experts(2.0), F0_1=experts(6.0, 300))
    assert busier.expert_shares == []
    idle = tuned(sets, A0_0=attention(1.0), F0_0=experts(2.0), F0_1=experts(6.0, 0))
    assert idle.expert_shares == []


def adopt(run: ThreadedRun, config: RunConfig) -> None:
    train, evaluation = compile_for(config)
    assert evaluation is None
    for worker, runtime in run.workers.items():
        weights = config.parallel.attention_weights
        runtime.adopt(train.programs.part(worker.group), None, weights)


@pytest.mark.parametrize(
    "sets",
    [
        {},
        {"parallel__groups": 2, "parallel__rings": 2},
        {"parallel__schedule": "ep_overlap", "parallel__expert_workers": 2},
    ],
)
def test_a_profile_changes_no_bit(sets: dict[str, object]) -> None:
    fixed = {
        "train__precision": "fp32",
        "train__global_batch_size": 8,
        "parallel__micro_batch_size": 1 if "parallel__rings" in sets else 2,
        "parallel__attention_workers": 2,
        "parallel__attention_shares": [1, 1],  # other shares round otherwise
        **sets,
    }
    config, steps = tiny(**fixed, parallel__profile="on"), 5
    assert config.parallel.in_flight == 0
    batches = [batch_of(config, seed) for seed in range(steps)]
    with threads(config, batches) as run:
        traces = []
        for step in range(steps):
            reports = run.each(lambda runtime, step=step: runtime.run_step(step))  # type: ignore[misc]
            traces += [{str(w): r.trace for w, r in reports.items() if r.trace is not None}]
            if step == 2:
                found = tune(config, traces[1:3])
                # a depth and an order that real measurements may not lead to
                costs = CostsConfig(attn_bwd=9.0, rows=3.0)
                update = {"costs": costs, "in_flight": 1 if "schedule" not in str(sets) else 2}
                other = found.config.parallel.model_copy(update=update)
                adopt(run, found.config.model_copy(update={"parallel": other}))
        tuned_values = values_of(run)
    assert [bool(trace) for trace in traces] == [False, True, True, True, True]
    plain = tiny(**fixed, parallel__profile="off", trace__steps=0)
    with threads(plain, batches) as run:
        for step in range(steps):
            reports = run.each(lambda runtime, step=step: runtime.run_step(step))  # type: ignore[misc]
            assert all(report.trace is None for report in reports.values())
        assert_same_tensors(tuned_values, values_of(run))


def test_what_a_real_profile_finds_compiles_and_other_shares_are_used() -> None:
    config = tiny(parallel__profile="on", parallel__attention_workers=2, trace__steps=0)
    with threads(config, [batch_of(config)] * 4) as run:
        traces = []
        for step in range(3):
            reports = run.each(lambda runtime, step=step: runtime.run_step(step))  # type: ignore[misc]
            traces.append({str(w): r.trace for w, r in reports.items() if r.trace is not None})
        found = tune(config, traces[1:])
        assert found.seconds.keys() == {
            *("embed", "attn_fwd", "experts_fwd", "head", "experts_bwd", "attn_bwd", "embed_bwd"),
            *("rows", "outputs", "doutputs", "drows"),
        }
        shares = found.config.parallel.model_copy(update={"attention_shares": [1.0, 9.0]})
        adopt(run, found.config.model_copy(update={"parallel": shares}))
        recordings = run.each(lambda runtime: runtime.record())
        run.each(lambda runtime: runtime.run_step(3))
        tokens = {str(w): {len(c) for c in r.choices.values()} for w, r in recordings.items()}
    assert tokens == {"A0.0": {0}, "A0.1": {10}, "F0.0": set()}


def test_programs_of_another_run_are_refused() -> None:
    config = tiny()
    with (
        threads(config, [batch_of(config)]) as run,
        pytest.raises(AssertionError, match="these programs are made for another run"),
    ):
        adopt(run, tiny(parallel__micro_batch_size=1))
