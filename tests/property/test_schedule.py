"""Programs of any size: text round trips, and every layout compiles, verifies and repeats."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagmoe.schedule.compile import BUILDERS, build_programs, compile_programs
from disagmoe.schedule.costs import OpCosts
from disagmoe.schedule.ir import (
    COMPUTE_OPS,
    EDGE_OPS,
    STEP_OPS,
    SUMMING_OPS,
    TRANSFER_OPS,
    Compute,
    Free,
    Op,
    ProgramSpec,
    Slot,
    SlotKind,
    StepEnd,
    Transfer,
    owner,
)
from disagmoe.schedule.layout import Channel, Group, Layout, Pass, Side, Worker
from disagmoe.schedule.text import parse_instruction, read_programs, write_program
from disagmoe.schedule.verify import verify
from tests.property.schedule_oracle import runs

numbers = st.integers(0, 10**6)
groups = st.builds(Group, st.sampled_from(Side), numbers)
sides = st.sampled_from([Side.ATTENTION, Side.EXPERT])
channels = st.builds(Channel, groups, groups, st.sampled_from(Pass))
instructions = st.one_of(
    st.builds(Compute, st.sampled_from(sorted(COMPUTE_OPS - EDGE_OPS)), numbers, numbers),
    st.builds(Compute, st.sampled_from(sorted(EDGE_OPS)), st.none(), numbers),
    st.builds(Transfer, st.sampled_from(sorted(TRANSFER_OPS)), channels, numbers, numbers),
    st.builds(Free, st.builds(Slot, sides, st.sampled_from(SlotKind), numbers, numbers)),
    st.builds(StepEnd, st.sampled_from(STEP_OPS)),
)
# ratios up to 1e6; zero is a legal cost too
times = st.one_of(st.just(0.0), st.floats(1e-3, 1e3))
schedules = st.sampled_from(list(BUILDERS))
costs = st.builds(OpCosts, **dict.fromkeys(OpCosts.__dataclass_fields__, times))


@st.composite
def specs(draw: st.DrawFn) -> ProgramSpec:
    """Specs of all shapes that compile within milliseconds."""
    layers = draw(st.integers(1, 9))
    depth = draw(st.integers(1, min(layers, 8)))
    colocated = draw(st.booleans())
    fused = depth > 1 and draw(st.booleans())
    workers = draw(st.integers(1, 4))
    layout = Layout(
        layers=layers,
        groups=depth,
        attention_workers=workers,
        expert_workers=workers if colocated else draw(st.integers(1, 4)),
        direct_residual=depth > 1 and not fused,
        fused_residual=fused,
        colocated=colocated,
        rings=draw(st.integers(1, 3)),
        workers_per_host=draw(st.sampled_from((0, 0, 1, 2))),
    )
    return ProgramSpec(
        layout=layout,
        micro_batches=draw(st.integers(1, 5 if layers < 6 else 3)),
        training=draw(st.booleans()),
        reduce_counts=draw(st.booleans()),
        split_backward=draw(st.booleans()),
    )


@given(instructions)
def test_an_instruction_reads_back_as_it_was(instruction):
    assert parse_instruction(str(instruction)) == instruction


@given(groups, numbers, numbers, channels)
def test_names_read_back_as_they_were(group, rank, ring, channel):
    assert Group.parse(str(group)) == group
    assert Worker.parse(str(Worker(group, rank, ring))) == Worker(group, rank, ring)
    assert Channel.parse(str(channel)) == channel


@pytest.mark.slow
@settings(max_examples=1000)
@given(specs(), schedules, st.integers(1, 6), costs)
def test_1000_layouts_compile_and_pass_the_verifier(spec, schedule, in_flight, op_costs):
    compile_programs(spec, schedule=schedule, in_flight=in_flight, costs=op_costs)


@settings(max_examples=60)
@given(specs(), schedules, st.integers(1, 6), costs)
def test_every_layout_compiles_verifies_and_repeats(spec, schedule, in_flight, op_costs):
    arguments = {"schedule": schedule, "in_flight": in_flight, "costs": op_costs}
    compiled = compile_programs(spec, **arguments)
    assert build_programs(spec, **arguments) == compiled

    texts = [write_program(program, spec) for program in compiled.programs.programs]
    assert read_programs(texts) == compiled.programs
    assert [write_program(program, spec) for program in read_programs(texts).programs] == texts


@settings(max_examples=100)
@given(specs(), schedules, st.integers(1, 6), costs)
def test_a_timeline_keeps_its_own_rules(spec, schedule, in_flight, op_costs):
    """One op per group and one transfer per way at a time, nothing before its inputs, at most
    `in_flight` micro-batches, sums in ascending order."""
    timeline = build_programs(spec, schedule=schedule, in_flight=in_flight, costs=op_costs).timeline
    host = spec.layout.host
    spans = {span.compute: span for span in timeline.spans}
    assert len(spans) == len(timeline.spans)
    for group in spec.layout.all_groups:
        mine = [span for span in timeline.spans if span.group == group]
        assert all(a.end <= b.start for a, b in pairwise(mine))
        for inside in (False, True):  # hosts, and the network between them, are separate ways
            hops = [hop for hop in timeline.hops if hop.key.channel.intra is inside]
            out = [hop for hop in hops if host(hop.key.channel.source) == group]
            assert all(a.start + a.time <= b.start for a, b in pairwise(out))
            into = [hop for hop in hops if host(hop.key.channel.target) == group]
            into.sort(key=lambda hop: (hop.landing, hop.end))
            assert all(a.end <= b.landing for a, b in pairwise(into))
    assert all(hop.ready <= hop.start <= hop.landing for hop in timeline.hops)
    assert all(host(owner(span.compute, spec.layout)) == span.group for span in timeline.spans)
    for op in SUMMING_OPS:
        for layer in (None, *range(spec.layout.layers)):
            done = [
                s.compute.mb
                for s in timeline.spans
                if (s.compute.op, s.compute.layer) == (op, layer)
            ]
            assert done == sorted(done)
    last = Op.EMBED_BWD if spec.training else Op.HEAD_EVAL
    begins = [spans[Compute(Op.EMBED, None, mb)].start for mb in range(spec.micro_batches)]
    ends = [spans[Compute(last, None, mb)].end for mb in range(spec.micro_batches)]
    for mb, begin in enumerate(begins):
        assert sum(end > begin for end in ends[:mb]) < in_flight


@settings(max_examples=40)
@given(specs(), st.sampled_from(["af_pipe", "ep_overlap"]), costs)
def test_sums_of_the_whole_step_reach_every_backward(spec, schedule, op_costs):
    """The oracle runs them, and no micro-batch goes back before the last one was routed."""
    spec = replace(spec, reduce_counts=True, counts_of_step=True)
    compiled = compile_programs(
        spec, schedule=schedule, in_flight=spec.micro_batches, costs=op_costs
    )
    assert runs(compiled.programs)
    texts = [write_program(program, spec) for program in compiled.programs.programs]
    assert read_programs(texts) == compiled.programs
    last = spec.layout.layers - 1
    computed = [span.compute for span in compiled.timeline.spans if span.compute.layer == last]
    routed = [at for at, compute in enumerate(computed) if compute.op is Op.ATTN_FWD]
    back = [at for at, compute in enumerate(computed) if compute.op is Op.ATTN_BWD]
    assert len(back) == (spec.micro_batches if spec.training else 0)
    assert max(routed) < min(back, default=len(computed))


@settings(max_examples=60)
@given(specs(), st.integers(1, 6), costs)
def test_nothing_is_computed_behind_an_all_to_all_of_ep_1f1b(spec, in_flight, op_costs):
    """Neither in its plan nor in its programs, which the workers execute at their own speed."""
    compiled = build_programs(spec, schedule="ep_1f1b", in_flight=in_flight, costs=op_costs)
    layout = spec.layout
    for hop in compiled.timeline.hops:
        if layout.exchanges(hop.key.channel):
            group = layout.host(hop.key.channel.source)
            mine = [span for span in compiled.timeline.spans if span.group == group]
            assert all(span.end <= hop.ready or span.start >= hop.end for span in mine)
    for program in compiled.programs.programs:
        under_way = set()
        for instruction in program.instructions:
            if isinstance(instruction, Transfer) and layout.exchanges(instruction.channel):
                if instruction.op is Op.EXCHANGE:
                    under_way.add(instruction.key)
                under_way -= {instruction.key} if instruction.op is Op.WAIT else set()
            # the sums of counts are a message of a few bytes
            elif isinstance(instruction, Compute) and instruction.op is not Op.REDUCE_COUNTS:
                assert not under_way


@settings(max_examples=40)
@given(specs(), st.integers(1, 6), st.integers(1, 6))
def test_the_depth_in_flight_changes_the_order_and_nothing_else(spec, one, other):
    """Every group executes the same instructions, whatever the number in flight."""
    left, right = (
        compile_programs(spec, schedule="af_pipe", in_flight=depth).programs
        for depth in (one, other)
    )
    for a, b in zip(left.programs, right.programs, strict=True):
        assert sorted(map(str, a.instructions)) == sorted(map(str, b.instructions))
    verify(left)
