"""Programs of any size: text round trips, and every layout compiles, verifies and repeats."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from disagmoe.schedule.compile import build_programs, compile_programs
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
costs = st.builds(OpCosts, **dict.fromkeys(OpCosts.__dataclass_fields__, times))


@st.composite
def specs(draw: st.DrawFn) -> ProgramSpec:
    """Specs of all shapes that compile within milliseconds."""
    layers = draw(st.integers(1, 5))
    depth = draw(st.integers(1, layers))
    layout = Layout(
        layers=layers,
        groups=depth,
        attention_workers=draw(st.integers(1, 4)),
        expert_workers=draw(st.integers(1, 4)),
        direct_residual=depth > 1,
    )
    return ProgramSpec(
        layout=layout,
        micro_batches=draw(st.integers(1, 5)),
        training=draw(st.booleans()),
        reduce_counts=draw(st.booleans()),
    )


@given(instructions)
def test_an_instruction_reads_back_as_it_was(instruction):
    assert parse_instruction(str(instruction)) == instruction


@given(groups, numbers, channels)
def test_names_read_back_as_they_were(group, rank, channel):
    assert Group.parse(str(group)) == group
    assert Worker.parse(str(Worker(group, rank))) == Worker(group, rank)
    assert Channel.parse(str(channel)) == channel


@settings(max_examples=150)
@given(specs(), st.sampled_from(["af_pipe", "serial"]), st.integers(1, 6), costs)
def test_every_layout_compiles_verifies_and_repeats(spec, schedule, in_flight, op_costs):
    arguments = {"schedule": schedule, "in_flight": in_flight, "costs": op_costs}
    compiled = compile_programs(spec, **arguments)
    assert build_programs(spec, **arguments) == compiled

    texts = [write_program(program, spec) for program in compiled.programs.programs]
    assert read_programs(texts) == compiled.programs
    assert [write_program(program, spec) for program in read_programs(texts).programs] == texts


@settings(max_examples=150)
@given(specs(), st.integers(1, 6), costs)
def test_a_timeline_keeps_its_own_rules(spec, in_flight, op_costs):
    """One op per group and one transfer per way at a time, nothing before its inputs, at most
    `in_flight` micro-batches, sums in ascending order."""
    timeline = build_programs(
        spec, schedule="af_pipe", in_flight=in_flight, costs=op_costs
    ).timeline
    spans = {span.compute: span for span in timeline.spans}
    assert len(spans) == len(timeline.spans)
    for group in spec.layout.all_groups:
        mine = [span for span in timeline.spans if span.group == group]
        assert all(a.end <= b.start for a, b in pairwise(mine))
        out = [hop for hop in timeline.hops if hop.key.channel.source == group]
        assert all(a.start + a.time <= b.start for a, b in pairwise(out))
        into = [hop for hop in timeline.hops if hop.key.channel.target == group]
        into.sort(key=lambda hop: (hop.landing, hop.end))
        assert all(a.end <= b.landing for a, b in pairwise(into))
    assert all(hop.ready <= hop.start <= hop.landing for hop in timeline.hops)
    assert all(owner(span.compute, spec.layout) == span.group for span in timeline.spans)
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


@settings(max_examples=60)
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
