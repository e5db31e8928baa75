import pytest

from disagmoe.config.run import RunConfig
from disagmoe.runtime.channels import (
    WORLD,
    channel_specs,
    choices_spec,
    held_kinds,
    replicas,
    replicas_name,
)
from disagmoe.runtime.parameters import SegmentKind
from disagmoe.schedule.from_config import programs_for
from disagmoe.schedule.layout import Group, Worker
from disagmoe.transport.base import ChannelSpec
from tests.unit.runtime.tiny import tiny


def specs(config: RunConfig) -> dict[str, ChannelSpec]:
    found = channel_specs(programs_for(config).spec)
    by_name = {spec.name: spec for spec in found}
    assert len(by_name) == len(found)
    return by_name


def test_one_group_of_one_worker_each() -> None:
    found = specs(tiny())
    assert list(found) == [
        "A0>F0.act.counts",
        "A0>F0.act",
        "F0>A0.act",
        "A0>F0.grad",
        "F0>A0.grad",
        WORLD,
    ]
    assert found["A0>F0.act"] == ChannelSpec("A0>F0.act", ("A0.0",), ("F0.0",))
    assert found[WORLD].members == ("A0.0", "F0.0")


def test_outputs_announce_their_rows_where_they_reach_another_group() -> None:
    found = specs(tiny(parallel__groups=2, parallel__residual="direct"))
    assert "F0>A1.act.counts" in found
    assert "A0>A1.act" in found
    assert "A1>F0.grad.counts" not in found
    assert "A0>A1.act" not in specs(tiny(parallel__groups=2))


def test_colocated_channels_join_the_workers_that_play_the_roles() -> None:
    config = tiny(
        parallel__schedule="ep_overlap",
        parallel__attention_workers=2,
        parallel__expert_workers=2,
    )
    found = specs(config)
    both = ("C0.0", "C0.1")
    assert found["A0>F0.act"] == ChannelSpec("A0>F0.act", both, both)
    assert found["attention0.replicas"].members == both
    assert "experts0.0.replicas" not in found


def test_choices_are_summed_only_for_the_loss_of_micro_batches() -> None:
    sets = {"parallel__attention_workers": 2, "parallel__rings": 2}
    assert "r1.A0.choices" not in specs(tiny(**sets))
    found = specs(tiny(**sets, train__loss__aux_scope="micro_batch"))
    assert found["r1.A0.choices"].members == ("r1.A0.0", "r1.A0.1")


def test_choices_of_a_whole_step_are_summed_over_all_rings() -> None:
    config = tiny(parallel__rings=2, train__loss__aux_scope="global")
    found = specs(config)
    assert found["A0.choices"].members == ("A0.0", "r1.A0.0")
    assert "r1.A0.choices" not in found
    spec = programs_for(config).spec
    for ring in range(2):  # both rings look for it by this name
        assert choices_spec(spec, Group.parse("A0"), ring) == found["A0.choices"]


def test_replicas_of_every_kind_in_rank_order_ring_after_ring() -> None:
    layout = programs_for(
        tiny(
            parallel__groups=2,
            parallel__attention_workers=2,
            parallel__expert_workers=2,
            parallel__rings=2,
        )
    ).spec.layout

    def members(kind: SegmentKind, worker: str) -> list[str]:
        return [str(peer) for peer in replicas(kind, Worker.parse(worker), layout)]

    attention = ["A1.0", "A1.1", "r1.A1.0", "r1.A1.1"]
    assert members(SegmentKind.ATTENTION, "r1.A1.0") == attention
    assert members(SegmentKind.EXPERTS, "F1.1") == ["F1.1", "r1.F1.1"]
    shared = ["A1.0", "A1.1", "F1.0", "F1.1", "r1.A1.0", "r1.A1.1", "r1.F1.0", "r1.F1.1"]
    assert members(SegmentKind.SHARED, "F1.0") == members(SegmentKind.SHARED, "A1.0") == shared


@pytest.mark.parametrize(
    ("sets", "worker", "kinds"),
    [
        ({}, "A0.0", ["attention"]),
        ({}, "F0.0", ["experts"]),
        ({"parallel__groups": 2}, "F1.0", ["shared", "experts"]),
        ({"parallel__groups": 2}, "A1.0", ["attention", "shared"]),
        ({"parallel__schedule": "ep_1f1b"}, "C0.0", ["attention", "experts"]),
        (
            {"parallel__schedule": "ep_1f1b", "parallel__groups": 2},
            "C0.0",
            ["attention", "shared", "experts"],
        ),
    ],
)
def test_what_each_worker_holds(sets: dict[str, object], worker: str, kinds: list[str]) -> None:
    layout = programs_for(tiny(**sets)).spec.layout
    assert [str(kind) for kind in held_kinds(layout, Worker.parse(worker))] == kinds


def test_every_worker_with_replicas_has_their_channel() -> None:
    config = tiny(parallel__groups=2, parallel__attention_workers=3, parallel__rings=2)
    layout, found = programs_for(config).spec.layout, specs(config)
    for worker in layout.workers:
        for kind in held_kinds(layout, worker):
            assert str(worker) in found[replicas_name(kind, worker)].members
