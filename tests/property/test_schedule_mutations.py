"""The verifier against an oracle: a program set is accepted exactly when running it is right.

The oracle shares no code with the verifier. It moves symbols instead of tensors: every op yields a
symbol made of its name and its inputs, channels are queues without tags, and in the end losses and
gradients must be the very lists that one process would have summed, in its order.
"""

import random
from collections import defaultdict, deque
from dataclasses import replace

import pytest

from disagmoe.errors import ScheduleError
from disagmoe.schedule.compile import BUILDERS, compile_programs
from disagmoe.schedule.ir import (
    EDGE_OPS,
    LAYER_OPS,
    STEP_OPS,
    TRANSFER_OPS,
    Compute,
    Free,
    Op,
    Program,
    ProgramSet,
    ProgramSpec,
    Slot,
    SlotKind,
    StepEnd,
    Transfer,
)
from disagmoe.schedule.layout import Channel, Layout, Pass, Side
from disagmoe.schedule.verify import verify

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
}


class IllegalError(Exception):
    """Running the programs went wrong."""


def run_op(op, layer, inputs, fused):
    """Outputs of an op by kind, as symbols; and what it adds to a sum, or None."""
    made = hash((str(op), layer, *inputs))
    outs = {
        Op.EMBED: ("hidden",),
        Op.ATTN_FWD: ("rows", "residual", "saved"),
        Op.EXPERTS_FWD: ("outputs", "saved"),
        Op.HEAD: ("doutputs", "dresidual"),
        Op.HEAD_EVAL: (),
        Op.EXPERTS_BWD: ("drows",),
        Op.ATTN_BWD: ("doutputs", "dresidual") if layer else ("dhidden",),
        Op.EMBED_BWD: (),
        Op.REDUCE_COUNTS: ("counts",),
    }[op]
    if fused:
        outs = [kind for kind in outs if kind not in ("residual", "dresidual")]
    adds = op in (Op.HEAD, Op.HEAD_EVAL, Op.EXPERTS_BWD, Op.ATTN_BWD, Op.EMBED_BWD)
    return {SlotKind(kind): hash((made, kind)) for kind in outs}, made if adds else None


def places(op, layer, spec):
    """Layer and kind of what an op reads, and the layer of what it writes."""
    reads, writes = all_places(op, layer, spec)
    fused = spec.layout.fused_residual
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
        Op.ATTN_BWD: (back, max(0, (layer or 0) - 1)),
        Op.EMBED_BWD: ([(0, "dhidden")], 0),
        Op.REDUCE_COUNTS: ([(layer, "saved")], layer),
    }[op]


def home(op, layer, spec):
    """Name of the role that holds the parameters of an op."""
    depth = spec.layout.groups
    if op in (Op.EXPERTS_FWD, Op.EXPERTS_BWD):
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
    layers = range(spec.layout.layers)
    forward = [(Op.EMBED, None)]
    for layer in layers:
        forward.append((Op.ATTN_FWD, layer))
        if spec.reduce_counts and spec.training:
            forward.append((Op.REDUCE_COUNTS, layer))
        forward.append((Op.EXPERTS_FWD, layer))
    backward = [(Op.HEAD, None)]
    for layer in reversed(layers):
        backward += [(Op.EXPERTS_BWD, layer), (Op.ATTN_BWD, layer)]
    backward.append((Op.EMBED_BWD, None))
    for mb in range(spec.micro_batches):
        memory = {}
        for op, layer in forward + (backward if spec.training else [(Op.HEAD_EVAL, None)]):
            reads, target = places(op, layer, spec)
            side = home(op, layer, spec)[0]
            inputs = [memory[side if k == "saved" else "", at, SlotKind(k)] for at, k in reads]
            outs, added = run_op(op, layer, (mb, *inputs), spec.layout.fused_residual)
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
        role = home(op, layer, self.spec)
        if host(role, self.spec) != actor.name:
            raise IllegalError("not the owner")
        if op is Op.REDUCE_COUNTS and self.serial and actor.line:
            return False
        reads, target = places(op, layer, self.spec)
        side = Side(role[0])
        inputs = [self.take(actor, Slot(side, SlotKind(kind), at, mb)) for at, kind in reads]
        outs, added = run_op(op, layer, (mb, *inputs), self.spec.layout.fused_residual)
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
            Slot(end.side, kind, transfer.layer, transfer.mb)
            for end in (channel.source, channel.target)
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
        counted = kind is SlotKind.ROWS or (
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


def accepted(programs):
    try:
        verify(programs)
    except ScheduleError:
        return False
    return True


def compiled(layers, depth, micro_batches, in_flight, schedule="af_pipe", *, fused=False, **kwargs):
    layout = Layout(
        layers=layers,
        groups=depth,
        direct_residual=depth > 1 and not fused,
        fused_residual=fused,
        colocated=schedule.startswith("ep_"),
    )
    spec = ProgramSpec(layout=layout, micro_batches=micro_batches, **kwargs)
    return compile_programs(spec, schedule=schedule, in_flight=in_flight).programs


CATALOGUE = {
    "one group": lambda: compiled(1, 1, 2, 2),
    "two layers": lambda: compiled(2, 1, 2, 2, reduce_counts=True),
    "two groups": lambda: compiled(2, 2, 2, 2),
    "uneven groups": lambda: compiled(3, 2, 3, 2, reduce_counts=True),
    "evaluation": lambda: compiled(2, 2, 3, 3, training=False),
    "fused residual": lambda: compiled(3, 2, 2, 2, fused=True),
    "colocated": lambda: compiled(2, 1, 2, 2, "ep_overlap", reduce_counts=True),
    "colocated, exposed": lambda: compiled(1, 1, 3, 1, "ep_1f1b"),
    "colocated ring": lambda: compiled(3, 2, 2, 2, "ep_overlap", reduce_counts=True),
    "colocated ring, exposed": lambda: compiled(2, 2, 3, 3, "ep_1f1b"),
    "colocated ring, fused": lambda: compiled(2, 2, 2, 2, "ep_overlap", fused=True),
    "colocated evaluation": lambda: compiled(2, 2, 3, 2, "ep_overlap", training=False),
}


def with_program(programs, index, instructions):
    changed = list(programs.programs)
    changed[index] = Program(changed[index].group, tuple(instructions))
    return ProgramSet(programs.spec, tuple(changed))


def drops(programs, index, at):
    body = list(programs.programs[index].instructions)
    del body[at]
    return with_program(programs, index, body)


def doubles(programs, index, at):
    body = list(programs.programs[index].instructions)
    body.insert(at, body[at])
    return with_program(programs, index, body)


def swaps(programs, index, at):
    body = list(programs.programs[index].instructions)
    other = (at + 1) % len(body)
    body[at], body[other] = body[other], body[at]
    return with_program(programs, index, body)


def positions(programs):
    return [
        (index, at)
        for index, program in enumerate(programs.programs)
        for at in range(len(program.instructions))
    ]


def moves(programs, index, at, rng):
    """Put an instruction somewhere else in its program."""
    body = list(programs.programs[index].instructions)
    body.insert(rng.randrange(len(body)), body.pop(at))
    return with_program(programs, index, body)


def trades(programs, index, at, rng):
    """Let two instructions of a program change places."""
    body = list(programs.programs[index].instructions)
    other = rng.randrange(len(body))
    body[at], body[other] = body[other], body[at]
    return with_program(programs, index, body)


def emigrates(programs, index, at, rng):
    """Move an instruction to another group's program, if there is one."""
    others = [i for i in range(len(programs.programs)) if i != index]
    if not others:
        return moves(programs, index, at, rng)
    body = list(programs.programs[index].instructions)
    moved = body.pop(at)
    other = rng.choice(others)
    theirs = list(programs.programs[other].instructions)
    theirs.insert(rng.randrange(len(theirs)), moved)
    return with_program(with_program(programs, index, body), other, theirs)


def retargets(programs, index, at, rng):
    """Change op, layer, micro-batch, channel, side or kind of an instruction."""
    body = list(programs.programs[index].instructions)
    spec = programs.spec
    layer = {"layer": rng.randrange(spec.layout.layers + 1)}
    mb = {"mb": rng.randrange(spec.micro_batches + 1)}
    match body[at]:
        case Compute(layer=None) as old:
            body[at] = replace(old, **rng.choice([mb, {"op": rng.choice(sorted(EDGE_OPS))}]))
        case Compute() as old:
            body[at] = replace(
                old, **rng.choice([mb, layer, {"op": rng.choice(sorted(LAYER_OPS))}])
            )
        case Transfer(channel=channel) as old:
            odd = Channel(channel.source, channel.target, rng.choice(list(Pass)))
            known = {"channel": rng.choice([odd, *spec.layout.channels()])}
            op = {"op": rng.choice(sorted(TRANSFER_OPS))}
            body[at] = replace(old, **rng.choice([mb, layer, known, op]))
        case Free(slot=slot):
            kind = {"kind": rng.choice(list(SlotKind))}
            side = {"side": rng.choice([Side.ATTENTION, Side.EXPERT])}
            body[at] = Free(replace(slot, **rng.choice([mb, layer, kind, side])))
        case StepEnd():
            body[at] = StepEnd(rng.choice(STEP_OPS))
    return with_program(programs, index, body)


RANDOM = (moves, trades, emigrates, retargets)


def agree(original, mutants):
    """Check that verifier and oracle agree on every mutant; return the number of illegal ones."""
    illegal = 0
    for name, mutant in mutants:
        right = mutant == original or runs(mutant)
        assert accepted(mutant) == right, f"{name}: the oracle says {right}"
        illegal += not right
    return illegal


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_oracle_accepts_what_the_compiler_makes(name):
    programs = CATALOGUE[name]()
    for serial in (False, True):
        World(programs, serial).run()


@pytest.mark.parametrize("mutate", [drops, doubles])
@pytest.mark.parametrize(
    "name", ["one group", "two groups", "evaluation", "colocated", "colocated ring, fused"]
)
def test_no_instruction_can_be_left_out_or_repeated(name, mutate):
    """Not one instruction is without need, so all of these mutants are illegal."""
    programs = CATALOGUE[name]()
    where = positions(programs)
    mutants = [(f"{mutate.__name__} {place}", mutate(programs, *place)) for place in where]
    assert agree(programs, mutants) == len(where)


@pytest.mark.parametrize("name", ["one group", "two groups", "colocated, exposed"])
def test_neighbours_may_change_places_only_if_the_result_stays_right(name):
    programs = CATALOGUE[name]()
    where = positions(programs)
    illegal = agree(programs, [(f"swap {place}", swaps(programs, *place)) for place in where])
    assert 0 < illegal < len(where)


def check_random(name, count, seed):
    programs = CATALOGUE[name]()
    rng = random.Random(seed)
    where = positions(programs)
    mutants = []
    for number in range(count):
        mutate = RANDOM[number % len(RANDOM)]
        place = rng.choice(where)
        mutants.append((f"{mutate.__name__} {place}", mutate(programs, *place, rng)))
    assert agree(programs, mutants) > count // 2


@pytest.mark.parametrize("name", CATALOGUE)
def test_random_mutants_are_refused_unless_they_stay_right(name):
    check_random(name, 100, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", CATALOGUE)
def test_many_more_random_mutants_are_refused_unless_they_stay_right(name):
    check_random(name, 500, seed=2)


def any_programs(rng):
    """Programs of a random small layout, in a random schedule."""
    layers = rng.randint(1, 3)
    depth = rng.randint(1, layers)
    return compiled(
        layers,
        depth,
        micro_batches=rng.randint(1, 3),
        in_flight=rng.randint(1, 3),
        schedule=rng.choice(list(BUILDERS)),
        fused=depth > 1 and rng.random() < 0.5,
        training=rng.random() < 0.8,
        reduce_counts=rng.random() < 0.5,
    )


def check_any_layout(count, seed):
    """Verifier and oracle agree on mutants of random layouts until `count` illegal ones are met."""
    rng = random.Random(seed)
    illegal = 0
    while illegal < count:
        programs = any_programs(rng)
        mutants = []
        for mutate in (drops, doubles, swaps):
            place = rng.choice(positions(programs))
            mutants.append((f"{mutate.__name__} {place}", mutate(programs, *place)))
        for mutate in 2 * RANDOM:
            place = rng.choice(positions(programs))
            mutants.append((f"{mutate.__name__} {place}", mutate(programs, *place, rng)))
        illegal += agree(programs, mutants)


def test_200_illegal_mutants_of_random_layouts_are_refused():
    check_any_layout(200, seed=3)


@pytest.mark.slow
def test_1000_illegal_mutants_of_random_layouts_are_refused():
    check_any_layout(1000, seed=4)


def test_two_mistakes_that_hide_each_other_are_seen():
    """Two micro-batches that change places at both ends of a channel pair up, but starve who reads
    them."""
    programs = compiled(1, 1, 2, 2)

    def relabel(instruction):
        is_rows = isinstance(instruction, Transfer) and (
            instruction.channel.source.side is Side.ATTENTION
            and instruction.channel.direction is ACT
        )
        return replace(instruction, mb=1 - instruction.mb) if is_rows else instruction

    mutant = ProgramSet(
        programs.spec,
        tuple(
            Program(program.group, tuple(map(relabel, program.instructions)))
            for program in programs.programs
        ),
    )
    assert not runs(mutant)
    assert not accepted(mutant)
