"""Seconds from traces."""

from disagmoe.runtime.clock import Span
from disagmoe.runtime.profile import Profile
from disagmoe.runtime.trace import Hop, WorkerTrace
from disagmoe.schedule.accounting import Kind


def compute(label: str, start_s: float, seconds: float) -> Span:
    return Span(Kind.COMPUTE, label, start_s, start_s + seconds)


def costs(**workers: WorkerTrace) -> dict[str, float]:
    return profile(**workers).costs({})


def profile(**workers: WorkerTrace) -> Profile:
    """Of workers named `A0_1` or `r1_A0_1`."""
    return Profile.of([{name.replace("_", "."): trace for name, trace in workers.items()}])


def spans(op: str, *seconds: float) -> WorkerTrace:
    return WorkerTrace(0, tuple(compute(op, 9.0 * i, s) for i, s in enumerate(seconds)), ())


def hops(*hops: Hop) -> WorkerTrace:
    return WorkerTrace(0, (), hops)


def test_an_op_costs_the_median_of_its_slowest_worker() -> None:
    fast, slow = spans("attn_fwd L0 m0", 1.0, 1.0, 1.0), spans("attn_fwd L1 m0", 2.0, 3.0, 8.0)
    assert costs(A0_0=fast, A0_1=slow) == {"attn_fwd": 3.0}


def test_workers_with_other_shares_take_other_times() -> None:
    attention, experts = spans("attn_fwd L0 m0", 4.0), spans("experts_fwd L0 m0", 4.0)
    seen = profile(C0_0=attention, C0_1=experts)
    assert seen.costs({"C0.0": 0.5, "C0.1": 1.5}) == {"attn_fwd": 2.0, "experts_fwd": 4.0}


def test_a_transfer_counts_from_the_later_post_to_the_arrival() -> None:
    sender = hops(Hop("A0>F0.act", "L0 m0", True, 8, 5.0, 9.0))
    ahead = hops(Hop("A0>F0.act", "L0 m0", False, 8, 1.0, 7.5))
    assert costs(A0_0=sender, F0_0=ahead) == {"rows": 2.5}
    late = hops(Hop("A0>F0.act", "L0 m0", False, 8, 6.0, 7.5))
    assert costs(A0_0=sender, F0_0=late) == {"rows": 1.5}


def test_a_transfer_of_several_senders_begins_with_the_last_in_its_ring() -> None:
    first, last = (hops(Hop("A0>F0.act", "L0 m0", True, 8, at, 9.0)) for at in (5.0, 2.0))
    other = hops(Hop("A0>F0.act", "L0 m0", True, 8, 7.0, 9.0))
    receiver = hops(Hop("A0>F0.act", "L0 m0", False, 8, 1.0, 7.5))
    assert costs(A0_0=first, A0_1=last, r1_A0_0=other, F0_0=receiver) == {"rows": 2.5}


def test_an_exchange_has_one_post() -> None:
    trace = hops(Hop("F0>A0.act", "L0 m0", False, 8, 6.0, 7.5))
    assert costs(C0_0=trace) == {"outputs": 1.5}


def test_waits_and_sums_are_no_costs() -> None:
    waits = (
        Span(Kind.RECV_WAIT, "wait A0>F0.act L0 m0", 0.0, 1.0),
        Span(Kind.OPTIMIZER, "", 1.0, 2.0),
        compute("reduce_counts L0 m0", 2.0, 1.0),
    )
    assert costs(A0_0=WorkerTrace(0, waits, ())) == {}


def test_busy_time_is_that_of_a_role_and_bytes_are_those_of_rows() -> None:
    both = WorkerTrace(
        0,
        (
            compute("attn_fwd L0 m0", 0.0, 1.0),
            compute("attn_fwd L0 m1", 1.0, 2.0),
            compute("attn_fwd L0 m2", 3.0, 9.0),  # counts as the median
            compute("head m0", 4.0, 0.5),
            compute("experts_dgrad L0 m0", 5.0, 4.0),
            compute("experts_wgrad L0 m0", 9.0, 3.0),
        ),
        (
            Hop("A0>F0.act", "L0 m0", False, 100, 0.0, 1.0),
            Hop("A0>F0.act", "L0 m1", False, 20, 0.0, 1.0),
            Hop("F0>A0.act", "L0 m1", False, 3, 0.0, 1.0),
        ),
    )
    seen = profile(C0_0=both)
    assert (seen.attention_s(), seen.experts_s()) == ({"C0.0": 6.5}, {"C0.0": 7.0})
    assert seen.row_bytes == {"C0.0": 120}
