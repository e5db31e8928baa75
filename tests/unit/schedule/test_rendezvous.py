import pytest

from disagmoe.schedule.ir import Program, ProgramSet, ProgramSpec
from disagmoe.schedule.layout import Group, Layout
from disagmoe.schedule.rendezvous import message_of, run_rendezvous
from disagmoe.schedule.text import parse_instruction


def test_a_message_is_counts_or_payload_and_a_wait_is_none():
    lines = ["send_counts", "recv_counts", "post_send", "post_recv", "wait"]
    transfers = [parse_instruction(f"{line} A0>F0.act L3 m1") for line in lines]
    counts, payload = "counts L3 m1 on A0>F0.act", "payload L3 m1 on A0>F0.act"
    assert list(map(str, map(message_of, transfers))) == [counts, counts, payload, payload, "None"]


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
