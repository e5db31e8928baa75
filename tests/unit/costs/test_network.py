"""Ways of rows between hosts and inside them."""

import pytest

from disagmoe.costs.network import edge_bytes_per_s, network_bytes_per_s, routes, transfer
from disagmoe.schedule.costs import Way
from disagmoe.schedule.ir import INSIDE_HOSTS, SlotKind
from tests.unit.costs.scenarios import pair

NIC, NVLINK = 43e9, 155e9
ROW = 8192 * 4096  # bytes of one copy of each token of a worker, Qwen3-235B in bf16
COPIES = 6.597  # of a token at 16 expert workers


def legs(what, kind):
    found = transfer(what, kind, routes(what, 0)).link.legs
    return {leg.way: leg.time for leg in found}


def qwen(*sets, **parallel):
    return pair("qwen3-235b-a22b", *sets, **parallel)


def test_apart_everything_passes_the_network():
    for kind in (SlotKind.ROWS, SlotKind.OUTPUTS, SlotKind.DOUTPUTS, SlotKind.DROWS):
        found = legs(qwen(), kind)
        assert set(found) == {Way.OUT, Way.IN}
        assert list(found.values()) == pytest.approx([COPIES * ROW / NIC] * 2, rel=0.003)


def test_once_per_host_and_on_by_nvlink():
    """Two hosts of experts: 1.99 copies by network, and 7 of 8 rows go on from the gateway."""
    what = qwen(dedupe="node")
    for kind in (SlotKind.ROWS, SlotKind.OUTPUTS, SlotKind.DOUTPUTS, SlotKind.DROWS):
        found = legs(what, kind)
        assert set(found) == {Way.OUT, Way.IN}
        assert list(found.values()) == pytest.approx([1.993 * ROW / NIC] * 2, rel=0.003)
    for kind in INSIDE_HOSTS:
        assert legs(what, kind) == {
            Way.NEAR_SOURCE: pytest.approx(COPIES * 7 / 8 * ROW / NVLINK, rel=0.003)
        }


def test_colocated_rows_for_the_own_host_meet_no_network():
    """Two hosts of 8: half of the rows of 1.99 copies stay, and each worker is its own gateway."""
    what = qwen(schedule="ep_overlap", dedupe="node")
    found = legs(what, SlotKind.ROWS)
    assert set(found) == {Way.OUT, Way.IN}
    assert found[Way.OUT] == pytest.approx(1.993 / 2 * ROW / NIC, rel=0.003)


def test_colocated_half_of_the_rows_stay_on_the_host_and_one_of_16_on_the_worker():
    found = legs(qwen(schedule="ep_overlap"), SlotKind.ROWS)
    assert set(found) == {Way.NEAR_SOURCE, Way.OUT, Way.IN}
    assert found[Way.OUT] == pytest.approx(COPIES / 2 * ROW / NIC, rel=0.003)
    assert found[Way.NEAR_SOURCE] == pytest.approx(COPIES * 7 / 16 * ROW / NVLINK, rel=0.003)


def test_colocated_in_a_pipeline_outputs_go_to_other_hosts():
    what = qwen(schedule="ep_overlap", groups=2)
    rows, outputs = (legs(what, kind) for kind in (SlotKind.ROWS, SlotKind.OUTPUTS))
    assert outputs[Way.OUT] == pytest.approx(2 * rows[Way.OUT], rel=0.01)
    assert Way.NEAR_SOURCE not in outputs


def test_on_mixed_hosts_a_quarter_stays():
    """32 workers on 4 hosts, each with both kinds."""
    what = qwen("hardware.mixed_nodes=true")
    found = legs(what, SlotKind.ROWS)
    assert found[Way.OUT] == pytest.approx(COPIES * 3 / 4 * ROW / NIC, rel=0.003)
    near = [found[Way.NEAR_SOURCE], found[Way.NEAR_TARGET]]
    assert near == pytest.approx([COPIES / 4 * ROW / NVLINK] * 2, rel=0.003)
    # experts of 4 hosts instead of 2: more copies, and 4 workers to pass them on to
    both = legs(qwen("hardware.mixed_nodes=true", dedupe="node"), SlotKind.ROWS)
    assert both[Way.OUT] == pytest.approx(3.63 * 3 / 4 * ROW / NIC, rel=0.003)


def test_one_host_needs_no_network_when_colocated():
    found = legs(qwen(schedule="ep_1f1b", workers=8), SlotKind.OUTPUTS)
    assert set(found) == {Way.NEAR_SOURCE}


def test_fewer_experts_workers_have_more_to_take_each():
    found = legs(qwen(expert_workers=8), SlotKind.ROWS)
    assert found[Way.IN] == pytest.approx(2 * found[Way.OUT])
    cards = legs(qwen("hardware.expert_nics=2.0", expert_workers=8), SlotKind.ROWS)
    assert cards[Way.IN] == pytest.approx(cards[Way.OUT])
    assert legs(qwen("hardware.nic_speed=0.5"), SlotKind.ROWS)[Way.OUT] == pytest.approx(
        2 * COPIES * ROW / NIC, rel=0.003
    )


def test_what_dedupe_and_fp8_save():
    plain = legs(qwen(dedupe="none"), SlotKind.ROWS)[Way.OUT]
    assert plain == pytest.approx(8 * ROW / NIC, rel=0.003)
    fp8 = legs(qwen(dispatch="fp8"), SlotKind.ROWS)[Way.OUT]
    assert fp8 == pytest.approx(COPIES * ROW / 2 * (1 + 4 / 128) / NIC, rel=0.005)
    outputs = legs(qwen(dispatch="fp8"), SlotKind.OUTPUTS)[Way.OUT]
    assert outputs == legs(qwen(), SlotKind.OUTPUTS)[Way.OUT]


@pytest.mark.parametrize("kind", [SlotKind.ROWS, SlotKind.OUTPUTS])
def test_what_is_sent_is_received(kind):
    sets = ["parallel.attention_shares=[1, 2, 3, 4]", "hardware.expert_skew=1.0"]
    what = pair("qwen3-235b-a22b", *sets, workers=4, micro_batch_size=10, expert_workers=3)
    found = transfer(what, kind, routes(what, 2))
    assert sum(found.out) == pytest.approx(sum(found.into))
    assert sum(found.parts) == pytest.approx(1)
    assert len(found.parts) == len(found.out)
    senders = [time / sum(found.out) for time in found.out]
    assert found.parts == pytest.approx(senders)


def test_an_edge_is_as_fast_as_its_slower_end():
    what = qwen("hardware.expert_nics=0.5")
    assert edge_bytes_per_s(what, (False, False), near=False) == pytest.approx(NIC, rel=0.01)
    assert edge_bytes_per_s(what, (False, True), near=False) == pytest.approx(NIC / 2, rel=0.01)
    assert edge_bytes_per_s(what, (True, False), near=True) == pytest.approx(NVLINK, rel=0.01)


def test_colocated_who_has_more_of_both_sends_and_receives_what_the_other_lacks():
    """Two hosts, one of which has two of three tokens and experts: 2/9 of all rows go each way."""
    shares = {"attention_shares": "[2.0, 1.0]", "expert_shares": "[2.0, 1.0]"}
    what = pair(
        "mixtral-8x22b",
        "hardware.workers_per_node=1",
        "parallel.micro_batch_size=6",
        schedule="ep_overlap",
        workers=2,
        dedupe="none",
        **shares,
    )
    found = transfer(what, SlotKind.OUTPUTS, routes(what, 0))
    held = [5 / 8, 3 / 8]  # of 8 experts
    row = 2 * what.model.hidden * 2  # 2 copies of a token
    rate = network_bytes_per_s(what.attention, what, of_experts=False)
    tokens = what.tokens
    assert found.out == pytest.approx(
        [tokens[1] * row * held[0] / rate, tokens[0] * row * held[1] / rate]
    )
    assert found.into == pytest.approx(found.out[::-1])
