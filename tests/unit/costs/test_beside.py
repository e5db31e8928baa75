"""What messages take from compute that goes on beside them, and what waiting for them hides."""

from dataclasses import replace

import pytest

from disagmoe.costs.calibration import NO_WORK, MessageWork
from disagmoe.costs.network import network_bytes_per_s
from disagmoe.costs.times import StepTimes
from disagmoe.schedule.ir import Op, SlotKind
from disagmoe.schedule.layout import Group, Side, Worker
from tests.unit.costs.scenarios import pair

MODEL = "qwen3-30b-a3b"
SEND = MessageWork(message_s=1e-3, byte_s=0.0)
RECEIVE = MessageWork(message_s=0.0, byte_s=1e-10)
COMPUTE = (Op.ATTN_FWD, Op.ATTN_BWD, Op.EXPERTS_FWD, Op.EXPERTS_BWD)


def what(*sets, send=NO_WORK, receive=NO_WORK, **parallel):
    """A scenario whose messages take `send` and `receive`."""
    found = pair(MODEL, *sets, workers=4, **parallel)
    calibration = replace(found.attention.calibration, send_work=send, receive_work=receive)
    machine = replace(found.attention, calibration=calibration)
    return replace(found, attention=machine, experts=machine)


def ratios(busy, usual, op):
    pairs = zip(busy.compute_s(op, 0), usual.compute_s(op, 0), strict=True)
    return [one / other for one, other in pairs]


def layer_s(times, side):
    ops = COMPUTE[:2] if side is Side.ATTENTION else COMPUTE[2:]
    return sum(times.slowest.compute(op, 0) for op in ops)


def wire_s(times, *kinds):
    return sum(times.slowest.link(kind, 0).time for kind in kinds)


def test_machines_with_processors_for_transfers_lose_nothing():
    times = StepTimes(pair(MODEL, workers=4))
    transfer = times.transfer(SlotKind.ROWS, 0)
    assert transfer.source_work == transfer.target_work == (0.0,) * 4


def test_a_payload_is_a_message_to_each_peer_and_bytes():
    found = what(send=SEND, receive=RECEIVE)
    transfer = StepTimes(found).transfer(SlotKind.ROWS, 0)
    assert transfer.source_work == pytest.approx([4e-3] * 4)
    rate = found.attention.hardware.nic_bytes_per_s * found.attention.calibration.nic_share
    assert transfer.target_work == pytest.approx([one * rate * 1e-10 for one in transfer.into])


def test_colocated_a_worker_sends_itself_nothing():
    transfer = StepTimes(what(send=SEND, schedule="ep_overlap")).transfer(SlotKind.OUTPUTS, 0)
    assert transfer.source_work == pytest.approx([3e-3] * 4)


def test_messages_take_their_share_of_a_period():
    """Each side sends 8 messages per layer; all go at the pace of the slowest."""
    usual, busy = StepTimes(what()), StepTimes(what(send=SEND))
    slowest_s = max(layer_s(usual, side) for side in (Side.ATTENTION, Side.EXPERT)) + 8e-3
    wires_s = wire_s(usual, SlotKind.ROWS, SlotKind.DOUTPUTS)
    period_s = max(slowest_s, wires_s, wire_s(usual, SlotKind.OUTPUTS, SlotKind.DROWS))
    for op in COMPUTE:
        assert ratios(busy, usual, op) == pytest.approx([period_s / (period_s - 8e-3)] * 4)
    assert busy.slowest.compute(Op.HEAD, None) == pytest.approx(
        usual.slowest.compute(Op.HEAD, None) * period_s / (period_s - 8e-3)
    )


def test_a_worker_that_nobody_waits_for_longer_has_all_of_it_added():
    """Where compute is the bottleneck, work for messages adds to it."""
    sets = ["hardware.nic_speed=1000.0", "hardware.slow_worker=C0.2", "hardware.slow_factor=3.0"]
    usual, busy = (
        StepTimes(what(*sets, send=one, schedule="ep_overlap")) for one in (NO_WORK, SEND)
    )

    def whole_s(times, rank):
        return sum(times.compute_s(op, 0)[rank] for op in COMPUTE)

    assert whole_s(busy, 2) == pytest.approx(whole_s(usual, 2) + 3 * 12e-3)
    assert whole_s(usual, 0) < whole_s(busy, 0) < whole_s(usual, 0) + 12e-3


def test_where_transfers_are_waited_for_they_take_nothing_from_compute():
    usual, busy = (StepTimes(what(send=one, schedule="ep_1f1b")) for one in (NO_WORK, SEND))
    for op in COMPUTE:
        assert busy.compute_s(op, 0) == usual.compute_s(op, 0)
    assert busy.transfer(SlotKind.ROWS, 0).out == pytest.approx([3e-3] * 4)


def test_the_last_all_to_all_of_a_layer_hides_behind_gradients_of_weights():
    sets = ["hardware.nic_speed=0.1", "hardware.workers_per_node=1"]
    overlapping = StepTimes(what(*sets, schedule="ep_overlap"))
    exposed = StepTimes(what(*sets, schedule="ep_1f1b"))
    weights_s = exposed.slowest.compute(Op.EXPERTS_WGRAD, 0)
    for kind in (SlotKind.ROWS, SlotKind.OUTPUTS, SlotKind.DOUTPUTS):
        assert exposed.transfer(kind, 0) == overlapping.transfer(kind, 0)
    before, after = (times.transfer(SlotKind.DROWS, 0) for times in (overlapping, exposed))
    assert after.out == pytest.approx([one - weights_s for one in before.out])
    assert min(after.out) > 0


def test_an_idle_network_gives_a_burst_for_nothing():
    usual = StepTimes(what(schedule="ep_1f1b")).transfer(SlotKind.ROWS, 0)
    found = what(schedule="ep_1f1b")
    calibration = replace(found.attention.calibration, burst_bytes=20_000)
    machine = replace(found.attention, calibration=calibration)
    burst = StepTimes(replace(found, attention=machine, experts=machine)).transfer(SlotKind.ROWS, 0)
    free_s = 20_000 / network_bytes_per_s(machine, found, of_experts=True)
    assert burst.out == pytest.approx([max(0.0, one - free_s) for one in usual.out])


def test_a_slow_worker_is_slow_with_messages_too():
    sets = ["hardware.nic_speed=1000.0", "hardware.slow_worker=F0.1", "hardware.slow_factor=2.0"]
    found = what(*sets, send=SEND)
    assert found.paces(Group(Side.EXPERT, 0)) == (1.0, 2.0, 1.0, 1.0)
    assert str(Worker(Group(Side.EXPERT, 0), 1)) == "F0.1"
    usual, busy = StepTimes(what(*sets)), StepTimes(found)
    slow, other = ratios(busy, usual, Op.EXPERTS_FWD)[1::-1]
    assert slow > other > 1
