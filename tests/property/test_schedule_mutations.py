"""The verifier against an oracle: a program set is accepted exactly when running it is right."""

import random
from dataclasses import replace

import pytest

from disagmoe.errors import ScheduleError
from disagmoe.schedule.compile import BUILDERS, compile_programs
from disagmoe.schedule.ir import (
    COUNT_OPS,
    EDGE_OPS,
    LAYER_OPS,
    POST_OPS,
    STEP_OPS,
    TRANSFER_OPS,
    Compute,
    Free,
    Program,
    ProgramSet,
    ProgramSpec,
    SlotKind,
    StepEnd,
    Transfer,
)
from disagmoe.schedule.layout import Channel, Layout, Pass, Side
from disagmoe.schedule.verify import verify
from tests.property.schedule_oracle import ACT, World, runs


def accepted(programs):
    try:
        verify(programs)
    except ScheduleError:
        return False
    return True


def compiled(
    layers,
    depth,
    micro_batches,
    in_flight,
    schedule="af_pipe",
    *,
    fused=False,
    workers_per_host=0,
    **kwargs,
):
    layout = Layout(
        layers=layers,
        groups=depth,
        direct_residual=depth > 1 and not fused,
        fused_residual=fused,
        colocated=schedule.startswith("ep_"),
        workers_per_host=workers_per_host,
    )
    spec = ProgramSpec(layout=layout, micro_batches=micro_batches, **kwargs)
    return compile_programs(spec, schedule=schedule, in_flight=in_flight).programs


CATALOGUE = {
    "one group": lambda: compiled(1, 1, 2, 2),
    "two layers": lambda: compiled(2, 1, 2, 2, reduce_counts=True),
    "two groups": lambda: compiled(2, 2, 2, 2),
    "uneven groups": lambda: compiled(3, 2, 3, 2, reduce_counts=True),
    "evaluation": lambda: compiled(2, 2, 3, 3, training=False),
    "split backward": lambda: compiled(2, 2, 2, 2, fused=True, split_backward=True),
    "fused residual": lambda: compiled(3, 2, 2, 2, fused=True),
    "colocated": lambda: compiled(2, 1, 2, 2, "ep_overlap", reduce_counts=True),
    "colocated, exposed": lambda: compiled(1, 1, 3, 1, "ep_1f1b"),
    "colocated ring": lambda: compiled(3, 2, 2, 2, "ep_overlap", reduce_counts=True),
    "colocated ring, exposed": lambda: compiled(2, 2, 3, 3, "ep_1f1b"),
    "colocated ring, fused": lambda: compiled(2, 2, 2, 2, "ep_overlap", fused=True),
    "two hops": lambda: compiled(1, 1, 2, 2, workers_per_host=2),
    "two hops, ring, fused": lambda: compiled(3, 2, 2, 2, fused=True, workers_per_host=2),
    "two hops, split backward": lambda: compiled(
        2, 1, 2, 2, split_backward=True, workers_per_host=2
    ),
    "two hops, evaluation": lambda: compiled(2, 2, 2, 2, training=False, workers_per_host=2),
    "two hops, colocated": lambda: compiled(2, 1, 2, 2, "ep_overlap", workers_per_host=2),
    "two hops, exposed": lambda: compiled(2, 2, 2, 2, "ep_1f1b", workers_per_host=2),
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


def reorders(programs, index, at, rng):
    """Let any two posts of a program change places, each with its counts: that breaks an order more
    often than a slot."""
    del at
    body = list(programs.programs[index].instructions)
    posts = [i for i, one in enumerate(body) if one.op in POST_OPS]
    a, b = rng.choice(posts), rng.choice(posts)
    counted = body[a - 1].op in COUNT_OPS and body[b - 1].op in COUNT_OPS
    for step in (0, 1) if counted else (0,):
        body[a - step], body[b - step] = body[b - step], body[a - step]
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
            body[at] = Free(slot._replace(**rng.choice([mb, layer, kind, side])))
        case StepEnd():
            body[at] = StepEnd(rng.choice(STEP_OPS))
    return with_program(programs, index, body)


RANDOM = (moves, trades, reorders, emigrates, retargets)


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
    "name",
    ["one group", "two groups", "evaluation", "colocated", "colocated ring, fused", "two hops"],
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


@pytest.mark.parametrize("name", CATALOGUE)
def test_random_mutants_are_refused_unless_they_stay_right(name):
    count = 60
    programs = CATALOGUE[name]()
    rng = random.Random(1)
    where = positions(programs)
    mutants = []
    for number in range(count):
        mutate = RANDOM[number % len(RANDOM)]
        place = rng.choice(where)
        mutants.append((f"{mutate.__name__} {place}", mutate(programs, *place, rng)))
    assert agree(programs, mutants) > count // 2


def any_programs(rng):
    """Programs of a random small layout, in a random schedule."""
    layers = rng.choice((1, 2, 3, 9))
    depth = rng.randint(1, min(layers, 8))
    return compiled(
        layers,
        depth,
        micro_batches=rng.randint(1, 3 if layers < 9 else 1),
        in_flight=rng.randint(1, 3),
        schedule=rng.choice(list(BUILDERS)),
        fused=depth > 1 and rng.random() < 0.5,
        workers_per_host=rng.choice((0, 0, 2)),
        training=rng.random() < 0.8,
        reduce_counts=rng.random() < 0.5,
        split_backward=rng.random() < 0.5,
    )


def test_a_backward_needs_the_counts_of_all_micro_batches():
    programs = compiled(2, 2, 3, 3, reduce_counts=True, counts_of_step=True)
    place = next(
        (number, index)
        for number, program in enumerate(programs.programs)
        for index, instruction in enumerate(program.instructions)
        if str(instruction) == "reduce_counts L1 m2"
    )
    assert runs(programs)
    assert agree(programs, [("a sum too few", drops(programs, *place))]) == 1


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


def test_100_illegal_mutants_of_random_layouts_are_refused():
    check_any_layout(100, seed=3)


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
