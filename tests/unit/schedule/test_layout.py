import pytest

from disagmoe.errors import ScheduleError
from disagmoe.schedule.layout import Channel, Group, Layout, Pass, Side, Worker


def ring(layers=5, groups=2, **workers):
    return Layout(layers=layers, groups=groups, direct_residual=groups > 1, **workers)


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


@pytest.mark.parametrize("side", ["attention_workers", "expert_workers"])
def test_a_group_without_workers_is_refused(side):
    with pytest.raises(ScheduleError, match=f"0 {side}; use 1 or more"):
        ring(**{side: 0})


@pytest.mark.parametrize("groups", [1, 2])
def test_the_residual_must_fit_the_ring(groups):
    with pytest.raises(ScheduleError, match="local for one group and direct for more"):
        Layout(layers=2, groups=groups, direct_residual=groups == 1)


def test_names():
    assert Worker.parse("F12.3") == Worker(Group(Side.EXPERT, 12), 3)
    assert Channel.parse("F1>A2.grad") == Channel(
        Group(Side.EXPERT, 1), Group(Side.ATTENTION, 2), Pass.GRAD
    )


@pytest.mark.parametrize("text", ["", "A", "B0", "A-1", "A01", "A0 ", "a0", "A\u0663", "A0.1"])
def test_what_is_no_group_is_refused(text):
    with pytest.raises(ScheduleError, match="is no group; expected A or F and a number, as in A0"):
        Group.parse(text)


@pytest.mark.parametrize("text", ["A0", "A0.", "A0.x", "A0.01", "A0.-1"])
def test_what_is_no_worker_is_refused(text):
    with pytest.raises(
        ScheduleError, match=r"is no worker; expected group, dot, rank, as in A0\.1"
    ):
        Worker.parse(text)


@pytest.mark.parametrize("text", ["A0", "A0>F0", "A0F0.act", "A0>F0.fwd", "A0>F0.act.x"])
def test_what_is_no_channel_is_refused(text):
    with pytest.raises(
        ScheduleError, match=r"is no channel; expected SOURCE>TARGET\.act or \.grad"
    ):
        Channel.parse(text)
