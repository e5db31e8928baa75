import pytest

from disagmoe.errors import ScheduleError
from disagmoe.schedule.layout import Channel, Group, Layout, Pass, Side, Worker


def ring(layers=5, groups=2, **kwargs):
    return Layout(layers=layers, groups=groups, direct_residual=groups > 1, **kwargs)


def names(values):
    return list(map(str, values))


def test_layers_go_round_the_ring():
    layout = ring(layers=5, groups=2)
    assert list(layout.layers_of(Group(Side.ATTENTION, 0))) == [0, 2, 4]
    assert list(layout.layers_of(Group(Side.EXPERT, 1))) == [1, 3]
    assert [str(layout.attention(layer)) for layer in range(5)] == ["A0", "A1", "A0", "A1", "A0"]
    assert (str(layout.embedding), str(layout.head)) == ("A0", "A1")


def test_the_head_lives_with_the_embedding_when_groups_divide_layers():
    assert ring(layers=6, groups=3).head == ring(layers=6, groups=3).embedding


def test_workers_are_ranked_attention_first():
    layout = ring(layers=2, groups=2, attention_workers=2, expert_workers=1)
    assert list(map(str, layout.workers)) == ["A0.0", "A0.1", "A1.0", "A1.1", "F0.0", "F1.0"]


def test_one_group_has_four_one_way_channels():
    assert list(map(str, ring(layers=3, groups=1).channels())) == [
        "A0>F0.act", "F0>A0.act", "A0>F0.grad", "F0>A0.grad",
    ]  # fmt: skip


def test_two_groups_hand_on_the_residual_as_well():
    assert list(map(str, ring(layers=5, groups=2).channels())) == [
        "A0>F0.act", "F0>A1.act", "A1>F0.grad", "F0>A0.grad", "A0>A1.act", "A1>A0.grad",
        "A1>F1.act", "F1>A0.act", "A0>F1.grad", "F1>A1.grad", "A1>A0.act", "A0>A1.grad",
    ]  # fmt: skip


@pytest.mark.parametrize(("layers", "groups"), [(1, 1), (5, 2), (7, 3), (4, 4)])
def test_channels_are_exactly_those_that_layers_use(layers, groups):
    layout = ring(layers, groups)
    used = set()
    for layer in range(layers):
        used |= {layout.dispatch(layer), layout.combine(layer)}
        used |= {layout.combine_grad(layer), layout.dispatch_grad(layer)}
        if groups > 1:
            used |= {layout.residual(layer), layout.residual_grad(layer)}
    assert set(layout.channels()) == used
    assert all(channel.source != channel.target for channel in used)


@pytest.mark.parametrize(("layers", "groups"), [(2, 3), (2, 0), (0, 0)])
def test_groups_without_layers_are_refused(layers, groups):
    with pytest.raises(ScheduleError, match=f"{groups} groups for {layers} layers; use 1 to"):
        Layout(layers=layers, groups=groups)


@pytest.mark.parametrize("count", ["attention_workers", "expert_workers", "rings"])
def test_a_layout_has_one_of_everything_at_least(count):
    with pytest.raises(ScheduleError, match=f"0 {count}; use 1 or more"):
        ring(**{count: 0})


@pytest.mark.parametrize(
    ("groups", "direct", "fused"), [(1, True, False), (1, False, True), (2, False, False),
                                    (2, True, True)]
)  # fmt: skip
def test_the_residual_must_fit_the_ring(groups, direct, fused):
    message = "local for one group, and either direct or fused for more"
    with pytest.raises(ScheduleError, match=message):
        Layout(layers=2, groups=groups, direct_residual=direct, fused_residual=fused)


def test_in_a_split_layout_every_role_has_workers_of_its_own():
    layout = ring(layers=3, groups=2)
    assert names(layout.roles) == names(layout.all_groups) == ["A0", "A1", "F0", "F1"]
    assert [layout.roles_of(group) for group in layout.all_groups] == [
        (group,) for group in layout.all_groups
    ]
    worker = Worker.parse("F1.0")
    assert layout.process(worker) == worker
    assert not any(map(layout.exchanges, layout.channels()))


def test_in_a_colocated_layout_workers_play_two_roles():
    layout = ring(layers=5, groups=2, attention_workers=2, expert_workers=2, colocated=True)
    assert names(layout.roles) == ["A0", "A1", "F0", "F1"]
    assert names(layout.all_groups) == ["C0", "C1"]
    assert names(layout.workers) == ["C0.0", "C0.1", "C1.0", "C1.1"]
    assert [str(layout.host(role)) for role in layout.roles] == ["C0", "C1", "C0", "C1"]
    assert names(layout.roles_of(Group.parse("C1"))) == ["A1", "F1"]
    assert str(layout.process(Worker.parse("F1.1"))) == "C1.1"
    assert list(layout.layers_of(Group.parse("C1"))) == [1, 3]
    # owners stay roles, so that parameters have one name in every layout
    assert (str(layout.attention(3)), str(layout.experts(3)), str(layout.head)) == (
        "A1",
        "F1",
        "A1",
    )


def test_channels_between_roles_of_the_same_workers_are_all_to_alls():
    one = ring(layers=3, groups=1, colocated=True)
    assert all(map(one.exchanges, one.channels()))
    two = ring(layers=5, groups=2, colocated=True)
    assert two.channels() == ring(layers=5, groups=2).channels()
    assert names(filter(two.exchanges, two.channels())) == [
        "A0>F0.act", "F0>A0.grad", "A1>F1.act", "F1>A1.grad",
    ]  # fmt: skip


def test_a_colocated_layout_has_as_many_attention_as_expert_workers():
    message = (
        "2 attention and 3 expert workers cannot be the same workers; use equal numbers in a "
        "colocated layout"
    )
    with pytest.raises(ScheduleError, match=message):
        ring(attention_workers=2, expert_workers=3, colocated=True)


def test_rings_repeat_the_workers():
    layout = ring(layers=1, groups=1, attention_workers=2, rings=2)
    assert names(layout.workers) == ["A0.0", "A0.1", "F0.0", "r1.A0.0", "r1.A0.1", "r1.F0.0"]
    assert layout.process(Worker.parse("r1.F0.0")) == Worker.parse("r1.F0.0")


def test_names():
    assert Worker.parse("F12.3") == Worker(Group(Side.EXPERT, 12), 3)
    assert Worker.parse("r2.C1.0") == Worker(Group(Side.COLOCATED, 1), 0, 2)
    assert Channel.parse("F1>A2.grad") == Channel(
        Group(Side.EXPERT, 1), Group(Side.ATTENTION, 2), Pass.GRAD
    )


@pytest.mark.parametrize("text", ["", "A", "B0", "A-1", "A01", "A0 ", "a0", "A\u0663", "A0.1"])
def test_what_is_no_group_is_refused(text):
    with pytest.raises(ScheduleError, match="is no group; expected A, F or C and a number, as in"):
        Group.parse(text)


@pytest.mark.parametrize(
    "text", ["A0", "A0.", "A0.x", "A0.01", "A0.-1", "r0.A0.1", "r01.A0.1", "1.A0.1"]
)
def test_what_is_no_worker_is_refused(text):
    with pytest.raises(
        ScheduleError, match=r"is no worker; expected group, dot, rank, as in A0\.1"
    ):
        Worker.parse(text)


@pytest.mark.parametrize("text", ["A0", "A0>F0", "A0F0.act", "A0>F0.fwd", "A0>F0.act.x"])
def test_what_is_no_channel_is_refused(text):
    with pytest.raises(
        ScheduleError,
        match=r"is no channel; expected SOURCE>TARGET and one of \.act, \.grad, \.fan",
    ):
        Channel.parse(text)
