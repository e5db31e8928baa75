"""Whether the two hops of rows go on at once: NVLink beside network cards."""

from disagmoe.schedule.intervals import Beside, Interval, beside
from disagmoe.simulator.engine import Actor, Engine, Way


def near_beside_network(engine: Engine) -> Beside:
    """Return how long NVLinks were busy, and how much of that the cards of the same worker were as
    well, in seconds of all simulated workers together."""
    actors = [actor for group in engine.actors for actor in group]
    return sum(map(_of, actors), Beside(0.0, 0.0))


def _of(actor: Actor) -> Beside:
    return beside(_busy(actor.near), [*_busy(actor.out), *_busy(actor.into)])


def _busy(way: Way) -> list[Interval]:
    return list(zip(way.starts, way.ends, strict=True))
