"""Adds transfers to the compute order: posts in one global order, waits as late as they may be."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from disagmoe.schedule.ir import (
    Compute,
    Instruction,
    Op,
    ProgramSpec,
    Slot,
    Transfer,
    TransferKey,
    effects,
)
from disagmoe.schedule.layout import Channel, Group
from disagmoe.schedule.timeline import Span, Timeline

WINDOW = 4
"""Sends of a channel that may be under way before the oldest is waited for. A send is over long
before, so its wait costs nothing, and its buffer is kept no longer than that."""


@dataclass(frozen=True, slots=True)
class _Post:
    key: TransferKey
    ready: float
    sends: bool
    receives: bool


@dataclass(frozen=True, slots=True)
class Part:
    """What a timeline has for one group, in order."""

    spans: list[Span] = field(default_factory=list)
    posts: list[_Post] = field(default_factory=list)


def parts(timeline: Timeline, spec: ProgramSpec) -> Mapping[Group, Part]:
    """Share the ops and transfers of `timeline` out to the groups."""
    shares = {group: Part() for group in spec.layout.all_groups}
    for span in timeline.spans:
        shares[span.group].spans.append(span)
    ends: dict[Channel, tuple[Group, Group]] = {}
    for hop in timeline.hops:
        channel = hop.key.channel
        if channel not in ends:
            ends[channel] = spec.layout.host(channel.source), spec.layout.host(channel.target)
        source, target = ends[channel]
        for group in {source, target}:
            post = _Post(hop.key, hop.ready, group == source, group == target)
            shares[group].posts.append(post)
    return shares


def add_transfers(
    part: Part, group: Group, spec: ProgramSpec, *, exposed_exchanges: bool = False
) -> list[Instruction]:
    """Return the instructions of `group`: its ops, and both ends' posts and waits around them.

    All groups post in the order of the timeline's hops, so any two workers agree on the order of
    what they exchange and no cycle of waits can arise. A send is posted when its producer ends, a
    receive at the first boundary between ops after that, an all-to-all is both. A receive is waited
    for just before its reader, an all-to-all that is planned to be exposed before the next op of
    any kind, a send just before the WINDOW-th later one of its channel.
    """
    return _Weaver(part, group, spec, exposed_exchanges).weave()


class _Weaver:
    """Goes through the ops of one group in time, with the transfers that are due and under way."""

    def __init__(self, part: Part, group: Group, spec: ProgramSpec, exposes: bool) -> None:
        self._group = group
        self._spec = spec
        self._exposes = exposes
        self._spans = part.spans
        self._due = deque(part.posts)
        self._written: set[Slot] = set()
        self._sent: dict[Channel, deque[TransferKey]] = {}
        self._arriving: dict[Slot, TransferKey] = {}
        self._out: list[Instruction] = []

    def weave(self) -> list[Instruction]:
        for span in self._spans:
            self._post_until(span.start)
            touched = effects(span.compute, self._group, self._spec)
            for slot in (*self._exposed(), *touched.reads):
                if slot in self._arriving:
                    self._wait(self._arriving.pop(slot))
            self._out.append(span.compute)
            self._written.update(touched.writes)
            # a send whose producer just ended goes at once, before the next op is looked at
            self._post_until(span.end)
            if self._spec.sums_counts and span.compute.op is Op.ATTN_FWD:
                # after the dispatch, which others wait for; the sums are read in the backward only
                compute = Compute(Op.REDUCE_COUNTS, span.compute.layer, span.compute.mb)
                self._out.append(compute)
        self._post_until(float("inf"))
        for sent in self._sent.values():
            for key in sent:
                self._wait(key)
        assert not self._arriving, "a payload that nobody reads"
        return self._out

    def _exposed(self) -> list[Slot]:
        """What all-to-alls bring that nothing is computed behind."""
        if not self._exposes:
            return []
        exchanges = self._spec.layout.exchanges
        return [slot for slot, key in self._arriving.items() if exchanges(key.channel)]

    def _post_until(self, time: float) -> None:
        while self._due and self._due[0].ready <= time:
            post = self._due[0]
            if post.sends and post.key.sent not in self._written:
                return  # its producer takes no time, and starts just now
            self._due.popleft()
            if post.sends and not post.receives:
                self._make_room(post.key.channel)
            self._post(post)

    def _make_room(self, channel: Channel) -> None:
        sent = self._sent.setdefault(channel, deque())
        while len(sent) >= WINDOW:
            self._wait(sent.popleft())

    def _post(self, post: _Post) -> None:
        match post.sends, post.receives:
            case True, True:
                ops = (Op.EXCHANGE_COUNTS, Op.EXCHANGE)
            case True, False:
                ops = (Op.SEND_COUNTS, Op.POST_SEND)
            case _:
                ops = (Op.RECV_COUNTS, Op.POST_RECV)
        key = post.key
        for op in ops if self._spec.sends_counts(key.channel) else ops[1:]:
            self._out.append(Transfer(op, key.channel, key.layer, key.mb))
        if post.receives:
            self._arriving[key.received] = key
        else:
            self._sent[key.channel].append(key)

    def _wait(self, key: TransferKey) -> None:
        self._out.append(Transfer(Op.WAIT, key.channel, key.layer, key.mb))
