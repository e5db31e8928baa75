"""Adds transfers to the compute order: posts in one global order, waits as late as they may be."""

from collections import deque
from dataclasses import dataclass

from disagmoe.schedule.ir import Compute, Instruction, Op, ProgramSpec, Slot, Transfer, effects
from disagmoe.schedule.layout import Group
from disagmoe.schedule.timeline import Hop, Timeline


@dataclass(frozen=True, slots=True)
class _Post:
    hop: Hop
    sends: bool


def add_transfers(timeline: Timeline, group: Group, spec: ProgramSpec) -> list[Instruction]:
    """Return the instructions of `group`: its ops, and both ends' posts and waits around them.

    All groups post in the order of `timeline.hops`, so any two workers agree on the order of what
    they exchange and no cycle of waits can arise. A send is posted when its producer ends, a
    receive at the first boundary between ops after that; a receive is waited for just before its
    reader, a send at the first boundary after its planned arrival.
    """
    spans = [span for span in timeline.spans if span.group == group]
    posts = deque(
        _Post(hop, hop.key.channel.source == group)
        for hop in timeline.hops
        if group in (hop.key.channel.source, hop.key.channel.target)
    )
    written: set[Slot] = set()
    sent: list[Hop] = []
    received: list[Hop] = []
    out: list[Instruction] = []

    def post_until(time: float) -> None:
        while posts and posts[0].hop.ready <= time:
            if posts[0].sends and posts[0].hop.key.slot not in written:
                return  # its producer takes no time, and starts just now
            post = posts.popleft()
            out.extend(_post(post, spec))
            (sent if post.sends else received).append(post.hop)

    for span in spans:
        post_until(span.start)
        for hop in [hop for hop in sent if hop.end <= span.start]:
            out.append(_wait(hop))
            sent.remove(hop)
        touched = effects(span.compute, group, spec)
        for hop in [hop for hop in received if hop.key.slot in touched.reads]:
            out.append(_wait(hop))
            received.remove(hop)
        out.append(span.compute)
        written.update(touched.writes)
        # a send whose producer just ended goes at once, before the next op is looked at
        post_until(span.end)
        if spec.sums_counts and span.compute.op is Op.ATTN_FWD:
            # after the dispatch, which others wait for; the sums are read in the backward only
            out.append(Compute(Op.REDUCE_COUNTS, span.compute.layer, span.compute.mb))
    post_until(float("inf"))
    out.extend(_wait(hop) for hop in sent)
    assert not received, "a payload that nobody reads"
    return out


def _post(post: _Post, spec: ProgramSpec) -> list[Instruction]:
    key = post.hop.key
    counts, payload = (
        (Op.SEND_COUNTS, Op.POST_SEND) if post.sends else (Op.RECV_COUNTS, Op.POST_RECV)
    )
    ops = (counts, payload) if spec.sends_counts(key.channel) else (payload,)
    return [Transfer(op, key.channel, key.layer, key.mb) for op in ops]


def _wait(hop: Hop) -> Instruction:
    return Transfer(Op.WAIT, hop.key.channel, hop.key.layer, hop.key.mb)
