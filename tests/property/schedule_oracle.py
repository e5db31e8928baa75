"""An oracle for programs that shares no code with the verifier.

It moves symbols instead of tensors: every op yields a symbol made of its name and its inputs,
channels are queues without tags, and in the end losses and gradients must be the very lists that
one process would have summed, in its order.
"""

from collections import defaultdict, deque

from disagmoe.schedule.ir import (
    EXPERT_OPS,
    STEP_OPS,
    Compute,
    Free,
    Op,
    Slot,
    SlotKind,
    StepEnd,
    Transfer,
)
from disagmoe.schedule.layout import Pass, Side

ACT, GRAD = Pass.ACT, Pass.GRAD
# how the ops of a transfer are called at its ends: counts, payload
OPS = {
    "sends": (Op.SEND_COUNTS, Op.POST_SEND),
    "receives": (Op.RECV_COUNTS, Op.POST_RECV),
    "both": (Op.EXCHANGE_COUNTS, Op.EXCHANGE),
}
# what travels, by the sides at both ends
CARGO = {
    ("A", "F", ACT): SlotKind.ROWS,
    ("F", "A", ACT): SlotKind.OUTPUTS,
    ("A", "A", ACT): SlotKind.RESIDUAL,
    ("A", "F", GRAD): SlotKind.DOUTPUTS,
    ("F", "A", GRAD): SlotKind.DROWS,
    ("A", "A", GRAD): SlotKind.DRESIDUAL,
    ("F", "F", Pass.FAN): SlotKind.FAN_ROWS,
    ("F", "F", Pass.SUM): SlotKind.NEAR_OUTPUTS,
    ("F", "F", Pass.FAN_GRAD): SlotKind.FAN_DOUTPUTS,
    ("F", "F", Pass.SUM_GRAD): SlotKind.NEAR_DROWS,
}
# what it is called where it arrives, if that is another name
ARRIVED = {
    SlotKind.FAN_ROWS: SlotKind.NEAR_ROWS,
    SlotKind.NEAR_OUTPUTS: SlotKind.PART_OUTPUTS,
    SlotKind.FAN_DOUTPUTS: SlotKind.NEAR_DOUTPUTS,
    SlotKind.NEAR_DROWS: SlotKind.PART_DROWS,
}
LEFT = {arrived: left for left, arrived in ARRIVED.items()}


class IllegalError(Exception):
    """Running the programs went wrong."""


OUTS = {
    Op.EMBED: ("hidden",),
    Op.ATTN_FWD: ("rows", "residual", "saved"),
    Op.EXPERTS_FWD: ("outputs", "saved"),
    Op.HEAD: ("doutputs", "dresidual"),
    Op.HEAD_EVAL: (),
    Op.EXPERTS_BWD: ("drows",),
    Op.EXPERTS_DGRAD: ("drows", "dsaved"),
    Op.EXPERTS_WGRAD: (),
    Op.ATTN_BWD: ("doutputs", "dresidual"),
    Op.EMBED_BWD: (),
    Op.REDUCE_COUNTS: ("counts",),
    Op.FAN_OUT: ("fan_rows", "routes"),
    Op.GATHER_ADD: ("outputs",),
    Op.FAN_OUT_BWD: ("fan_doutputs",),
    Op.GATHER_ADD_BWD: ("drows",),
}
GATEWAYS = (Op.FAN_OUT, Op.GATHER_ADD, Op.FAN_OUT_BWD, Op.GATHER_ADD_BWD)
# of experts behind gateways
NEAR = {"rows": "near_rows", "doutputs": "near_doutputs"}
NEAR |= {"outputs": "near_outputs", "drows": "near_drows"}


def run_op(op, layer, inputs, layout):
    """Outputs of an op by kind, as symbols; and what it adds to a sum, or None."""
    made = hash((str(op), layer, *inputs))
    outs = ("dhidden",) if op is Op.ATTN_BWD and layer == 0 else OUTS[op]
    if layout.workers_per_host and op in EXPERT_OPS:
        outs = [NEAR.get(kind, kind) for kind in outs]
    if layout.fused_residual:
        outs = [kind for kind in outs if kind not in ("residual", "dresidual")]
    adds = op in (
        Op.HEAD,
        Op.HEAD_EVAL,
        Op.EXPERTS_BWD,
        Op.EXPERTS_WGRAD,
        Op.ATTN_BWD,
        Op.EMBED_BWD,
    )
    return {SlotKind(kind): hash((made, kind)) for kind in outs}, made if adds else None


def places(op, layer, spec):
    """Layer and kind of what an op reads, and the layer of what it writes."""
    reads, writes = all_places(op, layer, spec)
    fused = spec.layout.fused_residual
    if spec.layout.workers_per_host and op in EXPERT_OPS:
        reads = [(at, NEAR.get(kind, kind)) for at, kind in reads]
    return [(at, k) for at, k in reads if not (fused and "residual" in k)], writes


def all_places(op, layer, spec):
    """The same where the residual stream travels by itself."""
    layers, train = spec.layout.layers, spec.training
    before = [(layer - 1, "outputs"), (layer - 1, "residual")] if layer else [(0, "hidden")]
    head = [(layers - 1, "outputs"), (layers - 1, "residual")]
    back = [(layer, "drows"), (layer, "dresidual"), (layer, "saved")]
    if spec.reduce_counts and train:
        back.append((layer, "counts"))
    return {
        Op.EMBED: ([], 0),
        Op.ATTN_FWD: (before, layer),
        Op.EXPERTS_FWD: ([(layer, "rows")], layer),
        Op.HEAD: (head, layers - 1),
        Op.HEAD_EVAL: (head, layers - 1),
        Op.EXPERTS_BWD: ([(layer, "doutputs"), (layer, "saved")], layer),
        Op.EXPERTS_DGRAD: ([(layer, "doutputs"), (layer, "saved")], layer),
        Op.EXPERTS_WGRAD: ([(layer, "saved"), (layer, "dsaved")], layer),
        Op.ATTN_BWD: (back, max(0, (layer or 0) - 1)),
        Op.EMBED_BWD: ([(0, "dhidden")], 0),
        Op.REDUCE_COUNTS: ([(layer, "saved")], layer),
        Op.FAN_OUT: ([(layer, "rows")], layer),
        Op.GATHER_ADD: ([(layer, "part_outputs"), (layer, "routes")], layer),
        Op.FAN_OUT_BWD: ([(layer, "doutputs"), (layer, "routes")], layer),
        Op.GATHER_ADD_BWD: ([(layer, "part_drows"), (layer, "routes")], layer),
    }[op]


def elsewhere(op, layer, mb, spec):
    """Slots of other micro-batches that an op reads too: counts of the whole step."""
    if op is not Op.ATTN_BWD or not (spec.training and spec.counts_of_step):
        return []
    others = [other for other in range(spec.micro_batches) if other != mb]
    return [Slot(Side.ATTENTION, SlotKind.COUNTS, layer, other) for other in others]


def home(op, layer, spec):
    """Name of the role that holds the parameters of an op."""
    depth = spec.layout.groups
    if op in EXPERT_OPS or op in GATEWAYS:
        return f"F{layer % depth}"
    if op in (Op.EMBED, Op.EMBED_BWD):
        return "A0"
    return f"A{(spec.layout.layers if layer is None else layer) % depth}"


def host(role, spec):
    """Name of the group that plays a role."""
    return f"C{role[1:]}" if spec.layout.colocated else role


def reference(spec):
    """What one process sums up: (op, layer) -> contributions in the order of micro-batches."""
    sums = defaultdict(list)

    def surrounded(before, ops, after, layer):
        two_hop = spec.layout.workers_per_host
        return [(before, layer), *ops, (after, layer)] if two_hop else ops

    layers = range(spec.layout.layers)
    forward = [(Op.EMBED, None)]
    for layer in layers:
        forward.append((Op.ATTN_FWD, layer))
        if spec.reduce_counts and spec.training:
            forward.append((Op.REDUCE_COUNTS, layer))
        experts = [(Op.EXPERTS_FWD, layer)]
        forward += surrounded(Op.FAN_OUT, experts, Op.GATHER_ADD, layer)
    backward = [(Op.HEAD, None)]
    for layer in reversed(layers):
        split = [(Op.EXPERTS_DGRAD, layer), (Op.EXPERTS_WGRAD, layer)]
        experts = split if spec.split_backward else [(Op.EXPERTS_BWD, layer)]
        backward += surrounded(Op.FAN_OUT_BWD, experts, Op.GATHER_ADD_BWD, layer)
        backward.append((Op.ATTN_BWD, layer))
    backward.append((Op.EMBED_BWD, None))
    memories = [{} for _ in range(spec.micro_batches)]
    back = backward if spec.training else [(Op.HEAD_EVAL, None)]
    for phase, mb in [(phase, mb) for phase in (forward, back) for mb in range(len(memories))]:
        memory = memories[mb]
        for op, layer in phase:
            reads, target = places(op, layer, spec)
            side = home(op, layer, spec)[0]
            kinds = [(at, LEFT.get(SlotKind(k), SlotKind(k))) for at, k in reads]
            inputs = [memory[side if k == "saved" else "", at, k] for at, k in kinds]
            for slot in elsewhere(op, layer, mb, spec):
                inputs.append(memories[slot.mb]["", slot.layer, slot.kind])
            outs, added = run_op(op, layer, (mb, *inputs), spec.layout)
            for kind, symbol in outs.items():
                memory[side if kind is SlotKind.SAVED else "", target, kind] = symbol
            if added is not None:
                sums[op, layer].append(added)
    return dict(sums)


class Actor:
    """One group: memory, place in its program, messages it has launched."""

    def __init__(self, program):
        self.name, self.todo = str(program.group), program.instructions
        self.at, self.memory, self.sums = 0, {}, defaultdict(list)
        self.launching = -1  # the instruction whose message was launched last
        self.ended = []
        self.line = deque()  # launched and not moved, in launch order: (channel, place)
        self.launched = {}  # (counts or payload, transfer) of this group -> message
        self.sending = set()  # slots that are under way to somebody
        self.waiting = set()
        self.told = []  # transfers whose sizes are known, in the order in which they were told


class Message:
    """A place in the order of a channel; both ends bring what they think that it is."""

    def __init__(self):
        self.ends, self.moved, self.slot, self.value = {}, False, None, None


class World:
    """Runs all programs; `serial` moves a group's messages one by one in launch order."""

    def __init__(self, programs, serial):
        self.spec, self.serial = programs.spec, serial
        self.actors = {str(program.group): Actor(program) for program in programs.programs}
        self.channels = defaultdict(lambda: defaultdict(Message))
        self.places = defaultdict(int)

    def run(self):
        while any(actor.at < len(actor.todo) for actor in self.actors.values()):
            moved = [self.advance(actor) for actor in self.actors.values()]
            if not any(moved):
                raise IllegalError("deadlock")
        sums = {}
        for actor in self.actors.values():
            if actor.memory or actor.waiting or actor.line or actor.told:
                raise IllegalError("left behind")
            if actor.ended != (list(STEP_OPS) if self.spec.training else []):
                raise IllegalError("step's end")
            sums.update(actor.sums)
        if sums != reference(self.spec):
            raise IllegalError("wrong sums")

    def advance(self, actor):
        begin = actor.at
        while actor.at < len(actor.todo) and self.step(actor, actor.todo[actor.at]):
            actor.at += 1
        return actor.at > begin

    def step(self, actor, instruction):
        if actor.ended and not isinstance(instruction, StepEnd):
            raise IllegalError("work after the step's end")
        match instruction:
            case StepEnd(op=op):
                actor.ended.append(op)
                return True
            case Free(slot=slot):
                if slot in actor.sending:
                    raise IllegalError("freed under way")
                self.take(actor, slot)
                del actor.memory[slot]
                return True
            case Compute():
                return self.compute(actor, instruction)
            case Transfer():
                return self.transfer(actor, instruction)

    def compute(self, actor, compute):
        op, layer, mb = compute.op, compute.layer, compute.mb
        if op not in OUTS:
            raise IllegalError("no op of these programs")
        role = home(op, layer, self.spec)
        if host(role, self.spec) != actor.name:
            raise IllegalError("not the owner")
        if op is Op.REDUCE_COUNTS and self.serial and actor.line:
            return False
        reads, target = places(op, layer, self.spec)
        side = Side(role[0])
        slots = [Slot(side, SlotKind(kind), at, mb) for at, kind in reads]
        slots += elsewhere(op, layer, mb, self.spec)
        inputs = [self.take(actor, slot) for slot in slots]
        if op in GATEWAYS and not self.spec.layout.workers_per_host:
            raise IllegalError("no gateways here")
        outs, added = run_op(op, layer, (mb, *inputs), self.spec.layout)
        for kind, symbol in outs.items():
            if kind is not SlotKind.SAVED or self.spec.training:
                self.put(actor, Slot(side, kind, target, mb), symbol)
        if added is not None:
            actor.sums[op, layer].append(added)
        return True

    def take(self, actor, slot):
        if slot not in actor.memory:
            raise IllegalError(f"no {slot}")
        return actor.memory[slot]

    def put(self, actor, slot, symbol):
        if slot in actor.memory:
            raise IllegalError(f"{slot} overwritten")
        actor.memory[slot] = symbol

    def transfer(self, actor, transfer):
        channel, op = transfer.channel, transfer.op
        kind = CARGO.get((str(channel.source.side), str(channel.target.side), channel.direction))
        ends = self.ends(channel)
        if kind is None or channel not in self.spec.layout.channels() or actor.name not in ends:
            raise IllegalError("no such channel here")
        part = "both" if ends[0] == ends[1] else "sends" if actor.name == ends[0] else "receives"
        key = (channel, transfer.layer, transfer.mb)
        sent, received = (
            Slot(end.side, called, transfer.layer, transfer.mb)
            for end, called in ((channel.source, kind), (channel.target, ARRIVED.get(kind, kind)))
        )
        if op is Op.WAIT:
            return self.wait(
                actor,
                key,
                None if part == "receives" else sent,
                None if part == "sends" else received,
            )
        if op not in OPS[part]:
            raise IllegalError("not this end's part")
        counts = op is OPS[part][0]
        counted = kind in (SlotKind.ROWS, SlotKind.FAN_ROWS) or (
            kind is SlotKind.OUTPUTS and self.spec.layout.groups > 1
        )
        if counts and not counted:
            raise IllegalError("counts that nobody needs")
        way = (counts, key)
        message = actor.launched.get(way)
        if actor.launching != actor.at:
            if message is not None:
                raise IllegalError("launched twice")
            actor.launching = actor.at
            message = self.launch(actor, way, None if part == "receives" else sent, counted)
        if counts:
            if message.moved:
                del actor.launched[way]
                actor.told.append(key)
            return message.moved
        if part == "sends" and len(message.ends) < 2:
            return False  # a rendezvous: the receive is not posted yet
        actor.waiting.add(key)
        return True

    def ends(self, channel):
        return tuple(host(str(role), self.spec) for role in (channel.source, channel.target))

    def launch(self, actor, way, sent, counted):
        """Bring this end of a message, which holds `sent` unless this end only receives."""
        counts, key = way
        channel = key[0]
        if sent is not None:
            self.take(actor, sent)
        if counts and key in actor.told:
            raise IllegalError("sizes told twice")
        if not counts and counted:
            told = [other for other in actor.told if other[0] == channel]
            if told[:1] != [key]:
                raise IllegalError("sizes unknown, or those of another payload are next")
            actor.told.remove(key)
        place = self.places[actor.name, channel]
        self.places[actor.name, channel] += 1
        message = self.channels[channel][place]
        message.ends[actor.name] = "counts" if counts else "payload"
        if sent is not None:
            message.slot = sent
            if not counts:
                actor.sending.add(sent)
        actor.launched[way] = message
        actor.line.append((channel, place))
        self.move()
        return message

    def move(self):
        """Move messages until none can."""
        again = True
        while again:
            again = False
            for actor in self.actors.values():
                for channel, place in self.heads(actor):
                    message = self.channels[channel][place]
                    names = dict.fromkeys(self.ends(channel))  # one end in an all-to-all
                    ends = [self.actors[name] for name in names]
                    if all((channel, place) in self.heads(end) for end in ends):
                        self.complete(message, channel, place, ends)
                        again = True

    def heads(self, actor):
        if self.serial:
            return list(actor.line)[:1]
        first = {}
        for channel, place in actor.line:
            first.setdefault(channel, place)
        return list(first.items())

    def complete(self, message, channel, place, ends):
        if len(set(message.ends.values())) != 1:
            raise IllegalError("counts met a payload")
        message.value = (message.slot, self.take(ends[0], message.slot))
        message.moved = True
        for end in ends:
            end.line.remove((channel, place))

    def wait(self, actor, key, sent, received):
        if key not in actor.waiting:
            raise IllegalError("waits for nothing")
        message = actor.launched[False, key]
        if not message.moved:
            return False
        actor.waiting.discard(key)
        del actor.launched[False, key]
        if sent is not None:
            self.take(actor, sent)
            actor.sending.discard(sent)
        if received is not None:
            # what came, whoever it was meant for
            self.put(actor, received, message.value[1])
        return True


def runs(programs):
    """Whether `programs` do what they must, in both ways of moving messages."""
    try:
        for serial in (False, True):
            World(programs, serial).run()
    except IllegalError:
        return False
    return True
