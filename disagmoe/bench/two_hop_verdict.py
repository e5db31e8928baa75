"""What the comparison of rows per worker and rows per host comes to, and whether it is valid."""

from collections.abc import Sequence
from typing import Any

from disagmoe.bench.two_hop import LINK_BOUND, NODE, RANK, Comparison, Measured
from disagmoe.bench.verdict import losses_agree
from disagmoe.costs.hops import rows_per_token
from disagmoe.schedule.intervals import Beside, Interval, beside
from disagmoe.schedule.layout import HOPS, Channel

BYTES_TOLERANCE = 0.02
"""What Ray, TCP and Ethernet add to the link's bytes may differ by this much."""
PADDING_TOLERANCE = 0.005


def bytes_ratio(comparison: Comparison) -> float:
    """Bytes on the link with rows per host over those with rows per worker."""
    ways = comparison.ways
    return ways[NODE].link_bytes / ways[RANK].link_bytes


def bytes_ratio_exact(comparison: Comparison) -> float:
    """The same ratio by the routing decisions."""
    ways = comparison.ways
    return ways[NODE].exact_bytes / ways[RANK].exact_bytes


def speedup(comparison: Comparison) -> float:
    """Step with rows per worker over step with rows per host."""
    ways = comparison.ways
    return ways[RANK].step_s / ways[NODE].step_s


def rows_ratio(comparison: Comparison) -> float:
    """Rows across the network per host over rows per worker."""
    node, rank = (comparison.ways[way].samples[-1].hops[HOPS[0]].rows for way in (NODE, RANK))
    return node / rank


def uniform_rows_ratio(comparison: Comparison) -> float:
    """The same for routing that takes all sets of experts equally often."""
    node, rank = (rows_per_token(comparison.ways[way].config)[HOPS[0]] for way in (NODE, RANK))
    return node / rank


def intra_beside_inter(measured: Measured) -> Beside:
    """How long workers were in transfers inside the host in the traced step, and how much of that
    also in transfers across the network."""
    total = Beside(0.0, 0.0)
    for trace in measured.tuned.traces.values():
        spans: dict[str, list[Interval]] = {hop: [] for hop in HOPS}
        for one in trace.hops:
            spans[Channel.parse(one.channel).hop].append((one.start_s, one.end_s))
        total += beside(spans[HOPS[1]], spans[HOPS[0]])
    return total


def checks(comparisons: Sequence[Comparison]) -> dict[str, bool]:
    """Return what must hold, by name."""
    found: dict[str, bool] = {}
    for comparison in comparisons:
        name = f"at {comparison.rate_mbit:.0f} Mbit/s"
        ways = list(comparison.ways.values())
        off = bytes_ratio(comparison) / bytes_ratio_exact(comparison) - 1
        found |= {
            f"{name}: workers pinned to their host's core": comparison.pinned,
            f"{name}: same losses": losses_agree([one.samples for one in ways]),
            f"{name}: rows sent are those that routing asks for": all(map(_rows_are_exact, ways)),
            f"{name}: payloads are as large as routing asks for": all(
                abs(one.payload_bytes / one.exact_bytes - 1) <= PADDING_TOLERANCE for one in ways
            ),
            f"{name}: the link's bytes are in the ratio that routing asks for": (
                abs(off) <= BYTES_TOLERANCE
            ),
        }
        if comparison.multiple == LINK_BOUND:
            found[f"{name}: rows per host are faster"] = speedup(comparison) > 1
    return found


def _rows_are_exact(measured: Measured) -> bool:
    return all(one.rows == one.exact_rows for s in measured.samples for one in s.hops.values())


def as_json(comparisons: Sequence[Comparison], rounds: int) -> dict[str, Any]:
    """Return all figures; those at the top are of the rate at which the link is busy longest."""
    found, first = checks(comparisons), comparisons[0]
    return {
        "valid": all(found.values()),
        "checks": found,
        "rounds": rounds,
        "rate_mbit": first.rate_mbit,
        "bytes_ratio": bytes_ratio(first),
        "bytes_ratio_exact": bytes_ratio_exact(first),
        "rows_ratio": rows_ratio(first),
        "rows_ratio_uniform": uniform_rows_ratio(first),
        "speedup": speedup(first),
        "intra_beside_inter": intra_beside_inter(first.ways[NODE]).share,
        "rates": [_comparison(one) for one in comparisons],
    }


def _comparison(comparison: Comparison) -> dict[str, Any]:
    return {
        "rate_mbit": comparison.rate_mbit,
        "multiple": comparison.multiple,
        "bytes_ratio": bytes_ratio(comparison),
        "bytes_ratio_exact": bytes_ratio_exact(comparison),
        "speedup": speedup(comparison),
        **{way: _way(measured) for way, measured in comparison.ways.items()},
    }


def _way(measured: Measured) -> dict[str, Any]:
    timeline, last = measured.tuned.compiled.timeline, measured.samples[-1]
    return {
        "in_flight": timeline.in_flight,
        "planned_s": timeline.makespan,
        "step_s": measured.step_s,
        "steps_s": [sample.step_s for sample in measured.samples],
        "link_bytes": measured.link_bytes,
        "payload_bytes": measured.payload_bytes,
        "exact_bytes": measured.exact_bytes,
        "rows": {hop: one.rows for hop, one in last.hops.items()},
        "exact_rows": {hop: one.exact_rows for hop, one in last.hops.items()},
        "bytes": {hop: one.nbytes for hop, one in last.hops.items()},
        "compute_s": [ops + rest for ops, rest in zip(last.ops_s, last.rest_s, strict=True)],
        "losses": [sample.loss for sample in measured.samples],
    }


def table(comparison: Comparison) -> list[str]:
    """Return the figures at one rate as text."""
    lines = [
        f"{comparison.rate_mbit:.0f} Mbit/s: rows per host are {speedup(comparison):.2f} times as "
        f"fast; bytes {bytes_ratio(comparison):.3f}, by routing "
        f"{bytes_ratio_exact(comparison):.3f} of those of rows per worker"
    ]
    for way, one in comparison.ways.items():
        rows = ", ".join(f"{hop} {count.rows:,}" for hop, count in one.samples[-1].hops.items())
        lines.append(
            f"  {way}: step {one.step_s:.2f} s, {one.link_bytes / 1e6:.1f} MB on the link; rows "
            f"per step: {rows}"
        )
    return lines
