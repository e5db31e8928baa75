import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagmoe.schedule.bounds import (
    Bound,
    chain_bound,
    head_tail_bound,
    in_flight_bound,
    lower_bound,
    paths_of,
    work_bound,
)
from disagmoe.schedule.compile import BUILDERS, build_programs
from disagmoe.schedule.costs import OpCosts
from disagmoe.schedule.ir import ProgramSpec
from disagmoe.schedule.layout import Layout
from disagmoe.schedule.timeline import simulate

ONES = OpCosts(**dict.fromkeys(OpCosts.__dataclass_fields__, 1.0))
# attention 1 and 2, experts 3 and 4, transfers 0.5, and nothing at the ends of the chain
RING = OpCosts(embed=0, head=0, embed_bwd=0, experts_fwd=3, experts_bwd=4)


def spec(layers=1, groups=1, micro_batches=1, *, colocated=False, **kwargs):
    layout = Layout(layers=layers, groups=groups, direct_residual=groups > 1, colocated=colocated)
    return ProgramSpec(layout=layout, micro_batches=micro_batches, **kwargs)


def test_each_resource_has_its_work():
    paths = paths_of(spec(layers=2, groups=2, micro_batches=3), ONES)
    work = {name: work_bound(uses, 3) for name, uses in paths.uses.items()}
    # A0: embedding, layer 0 and head both ways, since layer 2 would be on A0
    assert {name: work[name] for name in ("A0", "A1", "F0", "F1")} == {
        "A0": 15, "A1": 6, "F0": 6, "F1": 6,
    }  # fmt: skip
    assert {name for name in work if name.endswith(" out")} == {
        "A0 out", "A1 out", "F0 out", "F1 out",
    }  # fmt: skip
    # rows and residual of layer 0; gradients of the outputs and residual of layer 1, from the head
    assert (work["A0 out"], work["F0 out"]) == (12, 6)


@pytest.mark.parametrize(("layers", "groups", "micro_batches"), [(4, 1, 5), (4, 2, 3), (12, 4, 9)])
def test_fill_work_and_drain_of_the_last_group_is_the_sum_form(layers, groups, micro_batches):
    costs = OpCosts(
        embed=0, head=0, embed_bwd=0, experts_fwd=3, experts_bwd=4, residual=0, dresidual=0
    )
    paths = paths_of(spec(layers, groups, micro_batches), costs)
    a, f, c, a_b, f_b, c_b = 1, 3, 0.5, 2, 4, 0.5
    sum_form = (
        micro_batches * (layers // groups) * (f + f_b)
        + (groups - 1) * (a + f + 2 * c + a_b + f_b + 2 * c_b)
        + (a + c + c_b + a_b)
    )
    assert head_tail_bound(paths.uses[f"F{groups - 1}"], micro_batches) == sum_form


def test_the_chain_is_the_longest_way_through_a_micro_batch():
    assert chain_bound(paths_of(spec(), ONES)) == Bound("chain of a micro-batch", 11)
    slow = OpCosts(**{**dict.fromkeys(OpCosts.__dataclass_fields__, 1.0), "residual": 10.0})
    # the residual overtakes rows, experts and outputs: 3 ones make place for 10
    assert chain_bound(paths_of(spec(layers=2, groups=2), ONES)).time == 19
    assert chain_bound(paths_of(spec(layers=2, groups=2), slow)).time == 19 + 2 * (10 - 3)


def test_one_in_flight_is_exact_and_more_add_their_ramps():
    paths = paths_of(spec(micro_batches=4), ONES)
    assert in_flight_bound(paths, 1) == Bound("1 in flight", 44)
    # between embedding and its gradient: 4 * 11 / 2, and half a time unit at either end
    # between attention and its gradient: 1 + 4 * 9 / 2 + 1, and half a time unit at either end
    assert in_flight_bound(paths, 2) == Bound("2 in flight", 23)
    assert in_flight_bound(paths, 9) == in_flight_bound(paths, 4)


def test_the_largest_bound_is_named():
    many = spec(layers=4, micro_batches=8)
    assert lower_bound(many, RING, 8) == Bound("fill, work and drain of F0", 8 * 4 * 7 + 4)
    assert lower_bound(many, OpCosts(attn_fwd=9), 8).name == "work of A0"
    assert lower_bound(many, OpCosts(rows=9), 8).name == "fill, work and drain of A0 out"
    assert lower_bound(many, RING, 1).name == "1 in flight"
    assert lower_bound(spec(), ONES, 1).time == 11


def test_an_exposed_exchange_is_work_of_its_group():
    what = spec(layers=2, micro_batches=3, colocated=True)
    paths = paths_of(what, ONES, exposed_exchanges=True)
    assert work_bound(paths.uses["C0"], 3) == 3 * (3 + 4 * 2 + 4 * 2)
    assert build_programs(what, schedule="ep_1f1b", in_flight=1, costs=ONES).gap == 1.0


def test_a_bound_of_nothing_leaves_no_gap():
    free = OpCosts(**dict.fromkeys(OpCosts.__dataclass_fields__, 0.0))
    compiled = build_programs(spec(), schedule="serial", in_flight=1, costs=free)
    assert (compiled.bound.time, compiled.gap) == (0, 1.0)


times = st.one_of(st.just(0.0), st.just(1.0), st.floats(1e-3, 1e3))
costs = st.builds(OpCosts, **dict.fromkeys(OpCosts.__dataclass_fields__, times))


@st.composite
def specs(draw: st.DrawFn) -> ProgramSpec:
    layers = draw(st.integers(1, 5))
    groups = draw(st.integers(1, layers))
    return spec(
        layers,
        groups,
        draw(st.integers(1, 6)),
        colocated=draw(st.booleans()),
        training=draw(st.booleans()),
        split_backward=draw(st.booleans()),
    )


@settings(max_examples=300)
@given(specs(), costs, st.integers(1, 7), st.booleans(), st.randoms(use_true_random=False))
def test_no_order_beats_the_bound(what, op_costs, in_flight, exposed, random):
    bound = lower_bound(what, op_costs, in_flight, exposed_exchanges=exposed)
    timeline = simulate(
        what, op_costs, lambda _: (random.random(),), in_flight, exposed_exchanges=exposed
    )
    assert timeline.makespan >= bound.time * (1 - 1e-9)


@settings(max_examples=100)
@given(specs(), costs, st.integers(1, 7), st.sampled_from(sorted(BUILDERS)))
def test_no_builder_beats_the_bound(what, op_costs, in_flight, schedule):
    compiled = build_programs(what, schedule=schedule, in_flight=in_flight, costs=op_costs)
    assert compiled.gap >= 1 - 1e-9
