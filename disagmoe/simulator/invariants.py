"""What must hold of every simulation; broken, the simulator is wrong, not its input."""

from array import array

import numpy as np
from numpy.typing import NDArray

from disagmoe.simulator.engine import Actor, Engine, Way
from disagmoe.simulator.load import Traffic

_ROUNDING = 1e-9
"""Relative to the whole time."""

Floats = NDArray[np.float64]


def check(engine: Engine) -> None:
    """Assert that nothing overlaps, nothing starts before what it needs, and no work is lost."""
    end = max(engine.op_end)
    slack = _ROUNDING * end
    starts, ends = _table(engine.op_start, engine), _table(engine.op_end, engine)
    assert np.all(ends[starts >= 0] >= starts[starts >= 0]), "an op ends before it starts"
    _ops_follow_each_other(engine, slack)
    _transfers_keep_order(engine, slack)
    _inputs_are_there(engine, slack)
    for actors in engine.actors:
        for actor in actors:
            _work_is_conserved(engine, actor, slack)
            for way in (actor.near, actor.out, actor.into):
                _carries_one_at_a_time(way, slack)


def _table(values: "array[float]", engine: Engine) -> Floats:
    """Values by micro-batch, op or transfer, and rank."""
    table = np.frombuffer(values, dtype=np.float64)
    return table.reshape(engine.lowered.spec.micro_batches, -1, engine.width)


def _ops_follow_each_other(engine: Engine, slack: float) -> None:
    before = np.frombuffer(engine.op_before, dtype=np.int64).reshape(-1, engine.width)
    starts = np.frombuffer(engine.op_start, dtype=np.float64).reshape(-1, engine.width)
    ends = np.frombuffer(engine.op_end, dtype=np.float64).reshape(-1, engine.width)
    for rank in range(engine.width):
        later = np.flatnonzero(before[:, rank] >= 0)
        earlier = before[later, rank]
        assert np.all(starts[later, rank] >= ends[earlier, rank] - slack), "two ops at once"


def _transfers_keep_order(engine: Engine, slack: float) -> None:
    posted, arrival = _table(engine.posted, engine), _table(engine.arrival, engine)
    ends = _table(engine.op_end, engine)
    for wire, traffic in enumerate(engine.load.traffic):
        producer = engine.lowered.wires[wire][0]
        sent = posted[:, wire, : len(traffic.out)]
        made = ends[:, producer, : len(traffic.out)]
        assert np.all(sent >= made - slack), "a payload was sent before it was there"
        came = arrival[:, wire, : len(traffic.into)]
        if traffic.twins:
            least = sent + np.asarray(traffic.out) + traffic.latency
        else:
            least = (sent + np.asarray(traffic.out)).max(axis=1, keepdims=True) + traffic.latency
        assert np.all(came >= least - slack), "a payload came before it had left"


def _inputs_are_there(engine: Engine, slack: float) -> None:
    arrival, starts = _table(engine.arrival, engine), _table(engine.op_start, engine)
    for wire, (_, one) in enumerate(engine.lowered.wires):
        ranks = len(engine.load.traffic[wire].into)
        came, began = arrival[:, wire, :ranks], starts[:, one.reader, :ranks]
        assert np.all(began >= came - slack), "an op started before its input had come"


def _carries_one_at_a_time(way: Way, slack: float) -> None:
    starts, ends = np.frombuffer(way.starts), np.frombuffer(way.ends)
    assert np.all(starts[1:] >= ends[:-1] - slack), "a way carried two payloads at once"


def _work_is_conserved(engine: Engine, actor: Actor, slack: float) -> None:
    starts, ends = _table(engine.op_start, engine), _table(engine.op_end, engine)
    own = [at for at, one in enumerate(engine.lowered.chain) if one.group == actor.group]
    done = (ends[:, own, actor.rank] - starts[:, own, actor.rank]).sum()
    wanted = compute_work(engine, actor)
    assert abs(done - wanted) <= slack * len(own), "work of an actor was lost"
    for name, way in (("near", actor.near), ("out", actor.out), ("into", actor.into)):
        carried = (np.frombuffer(way.ends) - np.frombuffer(way.starts)).sum()
        asked = way_work(engine, actor, name)
        assert abs(carried - asked) <= slack * max(1, len(way.starts)), "traffic was lost"


def compute_work(engine: Engine, actor: Actor) -> float:
    """Seconds that `actor` has to compute in a step."""
    once = sum(
        engine.load.compute[at][actor.rank]
        for at, one in enumerate(engine.lowered.chain)
        if one.group == actor.group
    )
    return engine.lowered.spec.micro_batches * once


def way_work(engine: Engine, actor: Actor, name: str) -> float:
    """Seconds that the way `name` of `actor` has to carry in a step."""
    once = sum(_way_time(traffic, actor, name) for traffic in engine.load.traffic)
    return engine.lowered.spec.micro_batches * once


def _way_time(traffic: Traffic, actor: Actor, name: str) -> float:
    sends, receives = traffic.source == actor.group, traffic.target == actor.group
    received = traffic.parts[actor.rank] if traffic.twins else 1.0
    match name:
        case "out":
            return traffic.out[actor.rank] if sends else 0.0
        case "into":
            return traffic.into[actor.rank] * received if receives else 0.0
        case _:
            near = traffic.near_source[actor.rank] if sends else 0.0
            return near + (traffic.near_target[actor.rank] * received if receives else 0.0)
