import pytest

from disagmoe.errors import ScheduleError
from disagmoe.schedule.ir import Program, ProgramSet, ProgramSpec
from disagmoe.schedule.layout import Group, Layout
from disagmoe.schedule.rendezvous import message_of, run_rendezvous
from disagmoe.schedule.text import parse_instruction


def test_a_message_is_counts_or_payload_and_a_wait_is_none():
    lines = ["send_counts", "recv_counts", "exchange_counts"]
    lines += ["post_send", "post_recv", "exchange", "wait"]
    transfers = [parse_instruction(f"{line} A0>F0.act L3 m1") for line in lines]
    counts, payload = "counts L3 m1 on A0>F0.act", "payload L3 m1 on A0>F0.act"
    assert list(map(str, map(message_of, transfers))) == [*3 * [counts], *3 * [payload], "None"]


@pytest.mark.parametrize("serial", [False, True])
def test_a_send_passes_once_the_receive_is_posted(serial):
    """The sender may go on before the transfer has moved; only its wait needs that."""
    spec = ProgramSpec(layout=Layout(layers=1), micro_batches=1)
    lines = {
        "A0": ["post_send A0>F0.grad L0 m0", "post_recv F0>A0.grad L0 m0", "wait F0>A0.grad L0 m0"],
        "F0": ["post_recv A0>F0.grad L0 m0", "post_send F0>A0.grad L0 m0"],
    }
    programs = tuple(
        Program(Group.parse(name), tuple(map(parse_instruction, body)))
        for name, body in lines.items()
    )
    run_rendezvous(ProgramSet(spec, programs), serial=serial)


def colocated(groups, **lines):
    layout = Layout(layers=2, groups=groups, direct_residual=groups > 1, colocated=True)
    programs = tuple(
        Program(Group.parse(name), tuple(map(parse_instruction, body)))
        for name, body in lines.items()
    )
    return ProgramSet(ProgramSpec(layout=layout, micro_batches=2), programs)


@pytest.mark.parametrize("serial", [False, True])
def test_an_all_to_all_meets_nobody_else(serial):
    """Its workers run one program, so all of them are there when one of them is."""
    lines = ["exchange_counts A0>F0.act L0 m0", "exchange A0>F0.act L0 m0", "wait A0>F0.act L0 m0"]
    run_rendezvous(colocated(1, C0=lines), serial=serial)


def test_an_all_to_all_takes_its_turn_behind_a_transfer_that_is_under_way():
    """In launch order it moves when what was posted before it has; with free channels at once."""
    behind = [
        "post_recv F0>A1.act L0 m0",
        "exchange A1>F1.act L1 m1",
        "wait A1>F1.act L1 m1",
        "exchange A1>F1.act L1 m0",
    ]
    programs = colocated(2, C0=["post_recv A1>A0.grad L0 m0", "wait A1>A0.grad L0 m0"], C1=behind)
    for serial in (False, True):
        with pytest.raises(ScheduleError, match="deadlock") as caught:
            run_rendezvous(programs, serial=serial)
        assert ("C1 stands at 2: wait A1>F1.act L1 m1" in str(caught.value)) == serial


def test_hosts_that_send_before_either_receives_are_a_deadlock():
    programs = colocated(
        2,
        C0=["post_send F0>A1.act L0 m0", "post_recv A1>F0.grad L0 m1"],
        C1=["post_send A1>F0.grad L0 m1", "post_recv F0>A1.act L0 m0"],
    )
    with pytest.raises(ScheduleError) as caught:
        run_rendezvous(programs, serial=False)
    assert str(caught.value).splitlines() == [
        "deadlock",
        "  C0 stands at 0: post_send F0>A1.act L0 m0",
        "  C1 stands at 0: post_send A1>F0.grad L0 m1",
    ]
