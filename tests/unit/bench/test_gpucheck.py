"""What is read from traces of workers, and what of it is not as it should be."""

from typing import Any

import pytest

from disagmoe.bench.gpucheck import channels, problems
from disagmoe.bench.gpujobs import counts_wait_s, hidden_share
from disagmoe.bench.gpuoverlap import Overlap
from disagmoe.runtime.clock import Span
from disagmoe.runtime.edges import EdgeRate
from disagmoe.runtime.trace import Hop, WorkerTrace
from disagmoe.schedule.accounting import Kind

TRACE = WorkerTrace(
    step=2,
    spans=(
        Span(Kind.COMPUTE, "experts_fwd L0 m0", 0.0, 2.0),
        Span(Kind.RECV_WAIT, "post_recv A0>F0.act L0 m1", 2.0, 2.5),
        Span(Kind.RECV_WAIT, "wait A0>F0.act L0 m1", 2.5, 4.0),
        Span(Kind.COMPUTE, "experts_fwd L0 m1", 4.0, 5.0),
    ),
    hops=(
        Hop("A0>F0.act", "L0 m1", False, 8, 1.0, 3.0),
        Hop("F0>A0.act", "L0 m0", True, 8, 4.0, 6.0),
    ),
)


def test_transfers_are_hidden_where_a_worker_computes() -> None:
    assert hidden_share(TRACE) == pytest.approx(2.0 / 4.0)
    assert hidden_share(WorkerTrace(2, TRACE.spans, ())) == 0.0


def test_waits_for_counts_are_those_at_the_post_of_a_receive() -> None:
    assert counts_wait_s(TRACE) == pytest.approx(0.5)


def test_what_is_hidden_is_less_than_the_shorter_of_both() -> None:
    found = Overlap(transfer_s=4.0, compute_s=2.0, both_s=4.5, host_waits="")
    assert found.hidden_share == pytest.approx(0.75)


def test_a_channel_is_as_fast_as_its_slowest_edge() -> None:
    rates = [
        EdgeRate(channel="c", source="A0.0", target=target, bytes_per_s=rate, message_s=1e-5)
        for target, rate in (("F0.0", 2.0), ("F0.1", 1.0), ("F0.2", 3.0))
    ]
    assert channels(rates) == {"c": {"bytes_per_s": 1.0, "message_s": 1e-5}}


def seen(**changes: Any) -> dict[str, Any]:
    step = {"reads": 30, "reads_asked_for": 10}
    return {
        "parity": {"ok": True},
        "overlap": {"host_waits": "", "hidden_share": 0.8},
        "step": {"A0.0": step | changes.pop("step", {})},
    } | changes


@pytest.mark.parametrize(
    ("found", "gpus", "says"),
    [
        (seen(), 2, []),
        ({}, 2, []),
        (
            seen(parity={"ok": False}),
            2,
            ["parity: training on the GPU differs from one process on the CPU"],
        ),
        (
            seen(overlap={"host_waits": "", "hidden_share": 0.2}),
            2,
            ["overlap: 20% of transfers or products are hidden, expected more than 50%"],
        ),
        (seen(overlap={"host_waits": "", "hidden_share": 0.2}), 1, []),
        (
            seen(overlap={"host_waits": "a copy", "hidden_share": 0.9}),
            1,
            ["overlap: the host has waited for the device: a copy"],
        ),
        (
            seen(step={"reads": 35}),
            2,
            [
                "step: A0.0 has waited for its device 35 times; expected at most 10 in ops and 24 "
                "at the end"
            ],
        ),
        (seen(step={"reads": 0}), 2, ["step: the profiler of A0.0 sees no call of CUDA"]),
    ],
)
def test_problems_are_told(found: dict[str, Any], gpus: int, says: list[str]) -> None:
    assert problems(found, gpus=gpus) == says
