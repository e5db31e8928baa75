from disagmoe.runtime.clock import Kind, Span
from disagmoe.runtime.profile import measured_costs
from disagmoe.runtime.trace import Hop, WorkerTrace


def compute(label: str, start_s: float, seconds: float) -> Span:
    return Span(Kind.COMPUTE, label, start_s, start_s + seconds)


def test_an_op_costs_the_median_of_its_slowest_worker() -> None:
    fast = WorkerTrace(0, tuple(compute("attn_fwd L0 m0", 9.0 * i, 1.0) for i in range(3)), ())
    slow = WorkerTrace(
        0, tuple(compute("attn_fwd L1 m0", 9.0 * i, s) for i, s in enumerate((2.0, 3.0, 8.0))), ()
    )
    assert measured_costs([{"A0.0": fast, "A0.1": slow}]) == {"attn_fwd": 3.0}


def test_a_transfer_counts_from_the_later_post_to_the_arrival() -> None:
    sender = WorkerTrace(0, (), (Hop("A0>F0.act", "L0 m0", True, 8, 5.0, 9.0),))
    ahead = WorkerTrace(0, (), (Hop("A0>F0.act", "L0 m0", False, 8, 1.0, 7.5),))
    assert measured_costs([{"A0.0": sender, "F0.0": ahead}]) == {"rows": 2.5}
    late = WorkerTrace(0, (), (Hop("A0>F0.act", "L0 m0", False, 8, 6.0, 7.5),))
    assert measured_costs([{"A0.0": sender, "F0.0": late}]) == {"rows": 1.5}


def test_an_exchange_has_one_post() -> None:
    trace = WorkerTrace(0, (), (Hop("F0>A0.act", "L0 m0", False, 8, 6.0, 7.5),))
    assert measured_costs([{"C0.0": trace}]) == {"outputs": 1.5}


def test_waits_and_sums_are_no_costs() -> None:
    spans = (
        Span(Kind.RECV_WAIT, "wait A0>F0.act L0 m0", 0.0, 1.0),
        Span(Kind.OPTIMIZER, "", 1.0, 2.0),
        compute("reduce_counts L0 m0", 2.0, 1.0),
    )
    assert measured_costs([{"A0.0": WorkerTrace(0, spans, ())}]) == {}
