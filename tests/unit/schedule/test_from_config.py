from dataclasses import replace

import pytest

from disagmoe.config.load import parse_run_config
from disagmoe.schedule.compile import compile_programs
from disagmoe.schedule.costs import OpCosts
from disagmoe.schedule.from_config import ProgramRequest, compile_for, programs_for
from disagmoe.schedule.ir import ProgramSpec
from disagmoe.schedule.layout import Layout

TREE = {
    "model": {
        "family": "mixtral", "vocab_size": 16, "hidden": 8, "layers": 4, "heads": 2, "kv_heads": 1,
        "head_dim": 4, "experts": 4, "top_k": 2, "expert_width": 8,
    },
    "train": {"steps": 1, "global_batch_size": 10, "sequence_length": 4},
    "data": {"paths": ["data"]},
}  # fmt: skip


TWO_BY_TWO = ["parallel.groups=2", "parallel.attention_workers=2", "parallel.expert_workers=2"]


def request(*sets, training=True):
    return programs_for(parse_run_config(TREE, sets), training=training)


def test_one_group_keeps_its_residual_and_has_five_micro_batches_in_flight():
    layout = Layout(layers=4, attention_workers=2, expert_workers=3)
    found = request("parallel.attention_workers=2", "parallel.expert_workers=3")
    spec = ProgramSpec(layout=layout, micro_batches=10)
    assert found == ProgramRequest(spec=spec, schedule="af_pipe", in_flight=5)


def test_a_last_short_micro_batch_counts():
    found = request("parallel.micro_batch_size=4", "parallel.groups=2")
    layout = Layout(layers=4, groups=2, fused_residual=True)
    assert found.spec == ProgramSpec(layout=layout, micro_batches=3)
    assert found.in_flight == 3  # there are no more micro-batches


@pytest.mark.parametrize(
    ("sets", "in_flight"),
    [
        (["parallel.in_flight=5"], 5),
        (["parallel.groups=2"], 9),
        (['parallel.schedule="serial"'], 1),
        (['parallel.schedule="ep_1f1b"'], 1),
        (['parallel.schedule="ep_1f1b"', "parallel.groups=2"], 5),
        (['parallel.schedule="ep_overlap"'], 3),
        (["parallel.rings=2", "parallel.groups=2"], 5),  # all that a ring has
    ],
)
def test_micro_batches_in_flight(sets, in_flight):
    assert request(*sets).in_flight == in_flight


@pytest.mark.parametrize(
    ("sets", "changes"),
    [
        (['parallel.schedule="ep_1f1b"', *TWO_BY_TWO], {"colocated": True}),
        (['parallel.schedule="ep_overlap"', *TWO_BY_TWO], {"colocated": True}),
        (['parallel.schedule="serial"', *TWO_BY_TWO], {}),
        (['parallel.residual="direct"', *TWO_BY_TWO],
         {"direct_residual": True, "fused_residual": False}),
        (["parallel.rings=2", *TWO_BY_TWO], {"rings": 2}),
    ],
)  # fmt: skip
def test_layouts(sets, changes):
    layout = Layout(layers=4, groups=2, attention_workers=2, expert_workers=2, fused_residual=True)
    assert request(*sets).spec.layout == replace(layout, **changes)


def test_rings_share_a_batch():
    found = request("parallel.rings=3", "train.eval.sequences=4")
    assert found.spec.micro_batches == 4  # of 10, the last one empty in some rings
    evaluation = request("parallel.rings=3", "train.eval.sequences=4", training=False)
    assert evaluation.spec.micro_batches == 2


def test_counts_are_summed_for_the_balance_of_a_micro_batch_only():
    scope, weight = 'train.loss.aux_scope="micro_batch"', "train.loss.aux_coef=0.1"
    assert request(scope, weight).spec.reduce_counts
    assert not request(weight).spec.reduce_counts
    assert not request(scope).spec.reduce_counts
    assert not request(scope, weight, training=False).spec.reduce_counts


def test_the_balance_of_a_whole_step_has_all_its_micro_batches_in_flight():
    scope, weight = 'train.loss.aux_scope="global"', "train.loss.aux_coef=0.1"
    found = request(scope, weight)
    assert (found.spec.reduce_counts, found.spec.counts_of_step) == (True, True)
    assert found.in_flight == found.spec.micro_batches == 10
    evaluation = request(scope, weight, training=False).spec
    assert not evaluation.reduce_counts
    assert not evaluation.counts_of_step
    assert request(scope).in_flight < 10  # without weight nothing is summed
    assert not request(scope).spec.counts_of_step


def test_an_evaluation_runs_all_held_out_sequences():
    found = request("train.eval.sequences=5", "parallel.micro_batch_size=2", training=False)
    assert (found.spec.training, found.spec.micro_batches, found.in_flight) == (False, 3, 3)
    few = request("train.eval.sequences=2", training=False)
    assert (few.spec.micro_batches, few.in_flight) == (2, 2)


def test_a_cuda_config_compiles_where_there_is_no_cuda():
    assert request('cluster.device="cuda"') == request()


def test_the_request_compiles_with_its_own_arguments():
    found = request("parallel.in_flight=2", "parallel.costs.experts_fwd=3")
    assert found.compile() == found.build()
    assert found.costs == OpCosts(experts_fwd=3)
    assert found.compile() == found.compile(OpCosts(experts_fwd=3)) != found.compile(OpCosts())
    found = request("parallel.in_flight=2")
    assert found.compile() == compile_programs(found.spec, schedule="af_pipe", in_flight=2)


def test_programs_of_a_run():
    config = parse_run_config(TREE, ["train.eval.every=1", "train.eval.sequences=3"])
    train, evaluation = compile_for(config)
    assert train == programs_for(config).compile()
    assert evaluation == programs_for(config, training=False).compile()
    assert compile_for(parse_run_config(TREE))[1] is None
