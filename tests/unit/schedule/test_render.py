import pytest

from disagmoe.errors import ScheduleError
from disagmoe.schedule.compile import build_programs
from disagmoe.schedule.costs import OpCosts
from disagmoe.schedule.ir import ProgramSpec
from disagmoe.schedule.layout import Layout
from disagmoe.schedule.planned import planned_chart
from disagmoe.schedule.render import draw, summarize

ONES = OpCosts(**dict.fromkeys(OpCosts.__dataclass_fields__, 1.0))
ONE_LAYER = ProgramSpec(layout=Layout(layers=1), micro_batches=2)


def compiled(in_flight=2, costs=ONES, spec=ONE_LAYER):
    return build_programs(spec, schedule="af_pipe", in_flight=in_flight, costs=costs)


def grid(width, **kwargs):
    return draw(planned_chart(compiled(), ""), width=width, **kwargs).splitlines()


def test_a_column_per_unit_shows_each_op_once():
    assert compiled().timeline.makespan == 13
    assert grid(13) == [
        "   0          13",
        "A0 0011-a-b-aabb",
        "F0 ..-0-1-a-b...",
    ]


def test_more_columns_stretch_ops_and_fewer_show_what_fills_most_of_them():
    assert grid(26)[1:] == ["A0 00001111--aa--bb--aaaabbbb", "F0 ....--00--11--aa--bb......"]
    halves = draw(planned_chart(compiled(), ""), width=10, start=0, end=5)
    assert halves.splitlines()[1:] == ["A0 00001111--", "F0 ....--00--"]


def test_a_part_of_the_time_can_be_drawn():
    assert grid(10, start=3, end=13) == ["   3       13", "A0 1-a-b-aabb", "F0 0-1-a-b..."]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"width": 9}, "9 columns are too few for a timeline; use 10 or more"),
        ({"width": 80, "start": 13.0}, "cannot draw from 13 to 13; give 0 <= from < to"),
        ({"width": 80, "start": -1.0}, "cannot draw from -1 to 13; give 0 <= from < to"),
        ({"width": 80, "start": 2.0, "end": 1.0}, "cannot draw from 2 to 1"),
    ],
)
def test_what_cannot_be_drawn_is_refused(arguments, message):
    with pytest.raises(ScheduleError, match=message):
        grid(**arguments)


def test_the_summary_counts_time_memory_and_instructions():
    made = compiled()
    a0, f0 = made.programs.spec.layout.all_groups
    lengths = [len(program.instructions) for program in made.programs.programs]
    one, two = summarize(made, planned_chart(made, ""))
    assert (one.group, one.peak_slots, one.instructions) == (a0, 10, lengths[0])
    assert (two.group, two.peak_slots, two.instructions) == (f0, 6, lengths[1])
    assert one.shares.utilisation == pytest.approx(10 / 13)
    assert two.shares.utilisation == pytest.approx(4 / 13)
    for row in (one, two):
        shares = row.shares
        whole = shares.utilisation + shares.exposed_communication + shares.bubble
        assert whole == pytest.approx(1)
    assert planned_chart(made, "").shares.utilisation == pytest.approx(14 / 26)


def test_a_timeline_without_length_is_no_division_by_zero():
    nothing = compiled(costs=OpCosts(**dict.fromkeys(OpCosts.__dataclass_fields__, 0.0)))
    assert planned_chart(nothing, "").shares.utilisation == 0
    with pytest.raises(ScheduleError, match="cannot draw from 0 to 0"):
        draw(planned_chart(nothing, ""), width=80)
