"""Adds transfers to the compute order: posts in one global order, waits as late as they may be."""

from dataclasses import dataclass

from disagmoe.schedule.ir import Compute, Instruction, Op, ProgramSpec, Transfer, effects
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
    posts = [
        _Post(hop, hop.key.channel.source == group)
        for hop in timeline.hops
        if group in (hop.key.channel.source, hop.key.channel.target)
    ]
    sent: list[Hop] = []
    received: list[Hop] = []
    out: list[Instruction] = []

    def post_until(time: float) -> None:
        while posts and posts[0].hop.ready <= time:
            post = posts.pop(0)
            out.extend(_post(post, spec))
            (sent if post.sends else received).append(post.hop)

    for span in spans:
        post_until(span.start)
        for hop in [hop for hop in sent if hop.end <= span.start]:
            out.append(_wait(hop))
            sent.remove(hop)
        reads = set(effects(span.compute, group, spec).reads)
        for hop in [hop for hop in received if hop.key.slot in reads]:
            out.append(_wait(hop))
            received.remove(hop)
        out.append(span.compute)
        if spec.reduce_counts and span.compute.op is Op.ATTN_FWD:
            out.append(Compute(Op.REDUCE_COUNTS, span.compute.layer, span.compute.mb))
        # a send whose producer just ended goes at once, before the next op is looked at
        post_until(span.end)
    post_until(float("inf"))
    out.extend(_wait(hop) for hop in sent)
    assert not received, "a payload that nobody reads"
    return out


def _post(post: _Post, spec: ProgramSpec) -> list[Instruction]:
    key = post.hop.key
    ops = (Op.SEND_COUNTS, Op.POST_SEND) if post.sends else (Op.RECV_COUNTS, Op.POST_RECV)
    if not spec.sends_counts(key.channel):
        ops = ops[1:]
    return [Transfer(op, key.channel, key.layer, key.mb) for op in ops]


def _wait(hop: Hop) -> Instruction:
    return Transfer(Op.WAIT, hop.key.channel, hop.key.layer, hop.key.mb)
