"""The search against trying everything, its choices, and its refusals."""

import json

import pytest

from disagmoe.config.cluster import SideConfig
from disagmoe.config.rules import problems
from disagmoe.config.run import RunConfig
from disagmoe.config.tomlwrite import dump_toml
from disagmoe.errors import ConfigError
from disagmoe.planner.auto import divided
from disagmoe.planner.candidates import divisions
from disagmoe.planner.explain import as_json, as_text, reason
from disagmoe.planner.roofline import estimates
from disagmoe.planner.search import Choice, Sketch, attempt, search
from disagmoe.schedule.from_config import programs_for
from tests.unit.costs.public_models import MODELS
from tests.unit.costs.scenarios import run

FEW = MODELS["qwen3-30b-a3b"].model_copy(update={"layers": 4})


def few(*sets, model=FEW, batch=32, **parallel):
    sizes = {"attention_workers": 2, "expert_workers": 2, "micro_batch_size": 2} | parallel
    return run(model, f"train.global_batch_size={batch}", *sets, **sizes)


def test_divisions_are_all_there_are():
    """4 workers: one ring of 1 group (M from 1 to 3), of 2 groups or 2 rings (1 and 1), in three
    sizes of micro-batches; colocated as 4 x 1, 2 x 2 and 1 x 4 over rings and groups."""
    found = divisions(few())
    split = {(d.rings, d.groups, d.attention_workers) for d in found if d.schedule == "af_pipe"}
    assert split == {(1, 1, 1), (1, 1, 2), (1, 1, 3), (1, 2, 1), (2, 1, 1)}
    # rows to hosts differ where a group has several expert workers: (1, 1, 1) and (1, 1, 2)
    assert len([d for d in found if d.schedule == "af_pipe"]) == (5 + 2) * 3
    colocated = {(d.rings, d.groups, d.expert_workers) for d in found if d.schedule == "ep_1f1b"}
    assert colocated == {(1, 1, 4), (1, 2, 2), (1, 4, 1), (2, 1, 2), (2, 2, 1), (4, 1, 1)}


def test_idle_workers_may_lend_their_cards():
    config = few(attention_workers=8, expert_workers=8, micro_batch_size=8)
    lent = {
        (d.attention_workers, d.expert_workers, round(d.attention_nics, 3), round(d.expert_nics, 3))
        for d in divisions(config)
        if d.schedule == "af_pipe" and (d.groups, d.rings) == (1, 1)
    }
    assert {(8, 8, 1.0, 1.0), (6, 8, 1.333, 1.0), (8, 6, 1.0, 1.333), (8, 4, 1.0, 2.0)} <= lent
    assert (7, 8, 1.143, 1.0) not in lent


def test_gpus_that_lend_their_cards_are_reserved():
    config = few(attention_workers=8, expert_workers=8, micro_batch_size=8)
    lending = {
        (d.attention_workers, d.expert_workers): d.of(config, 4)
        for d in divisions(config)
        if d.schedule == "af_pipe" and (d.groups, d.rings, d.micro_batch_size) == (1, 1, 4)
    }
    run = lending[4, 8]
    assert run.cluster.mode == "cluster"
    assert run.cluster.attention == SideConfig(workers_per_node=4, gpus_per_node=8)
    assert run.cluster.expert == SideConfig(workers_per_node=8)
    assert (run.hardware.attention_nics, run.hardware.expert_nics) == (2.0, 1.0)
    assert problems(run) == []


def test_a_plan_for_one_host_stays_on_it():
    assert {d.of(few(), 1).cluster.mode for d in divisions(few())} == {"local"}


def test_layers_with_shared_experts_come_in_groups_too():
    model = MODELS["deepseek-v2-lite"].model_copy(update={"layers": 5})
    for shared_experts, residual in (("attention", "direct"), ("expert", "fused")):
        config = few(model=model, shared_experts=shared_experts)
        runs = [d.of(config, 1) for d in divisions(config) if d.groups == 2]
        assert {run.parallel.residual for run in runs} == {residual}


def test_activations_are_computed_again_where_memory_is_short():
    config = few("train.sequence_length=32768", batch=16)
    division = next(d for d in divisions(config) if d.micro_batch_size == 4)
    found = estimates(config, division)
    by_kind = {}
    for one in found:
        by_kind.setdefault(one.division.recompute, []).append(one)
    assert max(one.need for one in by_kind["none"]) > 1
    assert list(by_kind) == ["none", "attention", "experts", "all"]
    deepest = {kind: max(ones, key=lambda one: one.in_flight) for kind, ones in by_kind.items()}
    assert deepest["all"].need < 0.5 * deepest["none"].need
    assert deepest["all"].step_s > deepest["none"].step_s
    assert deepest["all"].division.summary.endswith(" workers, all recomputed")
    assert len({one.division for one in estimates(few(batch=16), division)}) == 1


def test_the_choice_is_the_best_of_all_that_fit():
    config = few(batch=16)
    every = [
        attempt(config, Sketch(one))
        for division in divisions(config)
        for one in estimates(config, division)
    ]
    fitting = [one for one in every if isinstance(one, Choice)]
    plan = search(config)
    assert plan.best.step_s == pytest.approx(min(one.step_s for one in fitting), rel=0.01)
    assert plan.estimates == len(every)
    for choice in fitting:
        # 128 experts over 3 workers are unequal parts
        slack = 0.01 if choice.config.parallel.expert_workers == 3 else 1e-9
        assert choice.step_s >= choice.estimate.step_s * (1 - slack)


def test_two_processes_find_the_same():
    assert search(few(batch=16), jobs=2) == search(few(batch=16))


def test_a_choice_is_a_config_that_loads_and_compiles(tmp_path):
    best = search(few(batch=16)).best.config
    assert problems(best) == []
    file = tmp_path / "run.toml"
    file.write_text(dump_toml(best), encoding="utf-8")
    paths = best.data.model_copy(update={"paths": RunConfig.load(file).data.paths})
    assert RunConfig.load(file) == best.model_copy(update={"data": paths})
    programs_for(best).compile()


def test_a_slow_network_favours_the_split_or_says_so():
    plan = search(few(batch=16))
    found = json.loads(json.dumps(as_json(plan)))
    assert found["choice"]["schedule"] == plan.best.schedule
    assert "is better here" in found["reason"]
    assert [one["step_s"] for one in found["runners_up"]] == sorted(
        one["step_s"] for one in found["runners_up"]
    )
    assert plan.best.estimate.division.summary in as_text(plan)
    paper = found["paper"]
    assert paper["two_phase"]["period_s"] <= paper["local_search"]["period_s"]
    assert paper["printed_intensity"]["experts"] == 2 * FEW.expert_width


def test_two_kinds_of_machines_keep_their_sides():
    plan = search(few("hardware.expert_machine=h20", batch=16))
    assert plan.two_kinds
    assert {choice.schedule for choice in plan.choices} == {"af_pipe"}
    for choice in plan.choices:
        parallel = choice.config.parallel
        assert parallel.rings * parallel.groups * parallel.attention_workers == 2
        assert parallel.rings * parallel.groups * parallel.expert_workers == 2
    assert "machines of their own" in as_json(plan)["reason"]


def test_a_model_that_cannot_fit_is_refused_with_figures():
    with pytest.raises(ConfigError) as caught:
        search(few(model=MODELS["deepseek-v3"], batch=8))
    text = str(caught.value)
    assert text.startswith("no division of 4 workers holds this model; the nearest, ")
    assert "of weights, gradients and optimizer" in text
    assert "use more workers (at least " in text


def test_a_balance_over_the_whole_step_is_not_planned():
    config = few("train.loss.aux_coef=0.1", "train.loss.aux_scope=global")
    with pytest.raises(ConfigError, match="all micro-batches of a step in flight, which no plan"):
        search(config)


def test_layout_auto_is_divided_and_fixed_is_left():
    config = few(batch=16)
    assert divided(config) is config
    auto = few(batch=16, layout='"auto"')
    with pytest.raises(ConfigError, match="has no programs before it is divided"):
        programs_for(auto)
    chosen = divided(auto)
    assert chosen.parallel.layout == "fixed"
    assert chosen == search(config).best.config


def test_rows_go_to_hosts_where_the_network_binds_and_the_reason_says_so():
    """One layer of experts, on machines of their own: neither several groups of a worker each nor
    colocated workers of one host get around the network."""
    plan = search(
        few(
            "hardware.nic_speed=0.1",
            "hardware.expert_machine=h20",
            model=FEW.model_copy(update={"layers": 1}),
            batch=16,
            attention_workers=4,
            expert_workers=4,
        )
    )
    assert plan.other_way is not None
    best, other = plan.best, plan.other_way
    assert (best.config.parallel.dedupe, other.config.parallel.dedupe) == ("node", "rank")
    assert best.step_s < other.step_s
    assert f"and the step take {other.step_s / best.step_s:.2f} times as long" in reason(plan)
    assert "Rows go once to each host, 1.00 of a token in a layer; to each worker" in reason(plan)
    found = as_json(plan)
    assert found["choice"]["dedupe"] == "node"
    assert found["choice"]["rows_per_token"]["inter"] == 1
    assert found["other_way"]["rows_per_token"]["inter"] > 1


def test_one_worker_on_each_host_leaves_one_way():
    plan = search(few("hardware.workers_per_node=1", batch=16))
    assert plan.other_way is None
    assert "which is the same as to each host" in reason(plan)
    assert {choice.config.parallel.dedupe for choice in plan.choices} == {"rank"}


def test_a_row_per_expert_is_kept_where_it_is_asked_for():
    plan = search(few(batch=16, dedupe="none"))
    assert {choice.config.parallel.dedupe for choice in plan.choices} == {"none"}
    assert "Rows go once to each expert, 8.00 of a token in a layer, as is asked for" in reason(
        plan
    )
