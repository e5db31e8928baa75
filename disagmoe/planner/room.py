"""Whether a run has room in memory, and the cheapest change that makes room where it has none."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from disagmoe.config.parallel import COLOCATED, ParallelConfig
from disagmoe.config.phrases import divisors
from disagmoe.config.rules import problems
from disagmoe.config.run import RunConfig
from disagmoe.config.tomlwrite import format_value
from disagmoe.costs.memory import MemoryUse, machine_of, memory_use, without_slots
from disagmoe.costs.scenario import scenario_of
from disagmoe.errors import ConfigError
from disagmoe.planner.roofline import Need
from disagmoe.planner.trial import Trial, trial
from disagmoe.schedule.from_config import programs_for
from disagmoe.schedule.layout import Group, Side, Worker
from disagmoe.units import format_bytes

_MARGIN = 2.0
"""Over activations and messages of all micro-batches in flight: an upper end."""
_MORE = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Times as many workers, or groups, that are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Bytes that workers have."""

    by_side: Mapping[Side, float]
    """Of each worker alone; sides that are missing are not known."""
    together: float | None = None
    """Of all workers together, where they share a machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """What does not fit."""

    who: str
    use: MemoryUse
    room: float

    @property
    def fullness(self) -> float:
        """Need over room."""
        return self.use.expected / self.room

    def __str__(self) -> str:
        use, need = self.use, self.use.expected
        states = use.weights + use.gradients + use.optimizer
        return (
            f"{self.who} {format_bytes(need)} of {format_bytes(self.room)} with balanced "
            f"routing: {format_bytes(states)} of weights, gradients and optimizer, "
            f"{format_bytes(use.slots)} of activations and messages, "
            f"{format_bytes(need - states - use.slots)} of temporaries and libraries"
        )


def room_of_machines(config: RunConfig) -> Room:
    """What the machines of section `hardware` have.

    Raises:
        ConfigError: a machine is not known, or has no rates for the run's precision.
    """
    scenario = scenario_of(config, programs_for(config).spec.layout)
    groups = scenario.layout.all_groups
    return Room(
        by_side={one.side: machine_of(scenario, one).hardware.memory_bytes for one in groups}
    )


def check_room(config: RunConfig, room: Room) -> None:
    """Refuse a run that cannot fit into `room`, even where routing is balanced.

    Raises:
        ConfigError: with what is lacking, and the cheapest change that helps.
    """
    if _is_ample(config, room):
        return
    tried = trial(_with_depth(config))
    lack = _lack(tried, room)
    if lack is None:
        return
    parallel = tried.config.parallel
    raise ConfigError(
        f"the run cannot fit into memory: {parallel.summary} with {parallel.in_flight} "
        f"micro-batches in flight, where {lack}; {_advice(tried, room)}"
    )


def _is_ample(config: RunConfig, room: Room) -> bool:
    """Whether a rough upper end of the need fits, so that nothing has to be compiled."""
    request = programs_for(config)
    need, kept = Need.of(scenario_of(config, request.spec.layout)), _MARGIN * request.in_flight
    most = max(one.bytes_of(kept, kept) for one in need.kinds)
    fits = room.together is None or most * config.parallel.workers <= room.together
    return fits and all(most <= each for each in room.by_side.values())


def _is_hopeless(config: RunConfig, room: Room) -> bool:
    """Whether what does not depend on the schedule is too much already."""
    scenario = scenario_of(config, programs_for(config).spec.layout)
    layout = scenario.layout
    needs = {
        group: without_slots(scenario, Worker(group, 0)).expected for group in layout.all_groups
    }
    whole = layout.rings * sum(layout.size(group) * need for group, need in needs.items())
    return (room.together is not None and whole > room.together) or any(
        need > room.by_side.get(side, need)
        for group, need in needs.items()
        for side in _sides(group)
    )


def _lack(tried: Trial, room: Room) -> Lack | None:
    """The worker, or all of them, with the largest lack; None where everything fits."""
    lacks = [
        Lack(who=f"{one.worker} needs", use=one.use, room=each)
        for one in tried.memory
        for side, each in room.by_side.items()
        if side in _sides(Worker.parse(one.worker).group) and one.use.expected > each
    ]
    if room.together is not None:
        whole = _whole(tried)
        if whole.expected > room.together:
            who = f"all {tried.config.parallel.workers} workers, which share a machine, need"
            lacks.append(Lack(who=who, use=whole, room=room.together))
    return max(lacks, key=lambda one: one.fullness, default=None)


def _whole(tried: Trial) -> MemoryUse:
    """What all workers use together."""
    scenario, programs = tried.times.scenario, tried.compiled.programs
    layout = scenario.layout
    parts = [
        asdict(memory_use(scenario, worker, programs.part(worker.group)))
        for group in layout.all_groups
        for worker in layout.members(group)
    ]
    return MemoryUse(
        **{name: layout.rings * sum(part[name] for part in parts) for name in parts[0]}
    )


def _sides(group: Group) -> tuple[Side, ...]:
    """Keys of `Room.by_side` that are about workers of `group`."""
    side = group.side
    return (side, Side.ATTENTION) if side is Side.COLOCATED else (side,)


def _with_depth(config: RunConfig) -> RunConfig:
    """`config` with its depth in flight given."""
    return _with(config, in_flight=programs_for(config).in_flight)


def _with(config: RunConfig, **parallel: object) -> RunConfig:
    return config.model_copy(update={"parallel": config.parallel.model_copy(update=parallel)})


def _advice(tried: Trial, room: Room) -> str:
    """The cheapest change with which it fits: the one with the fastest step on as many workers,
    else the one with the fewest workers."""
    config = tried.config
    before_s = tried.simulate(by_group=True).step_s
    found = []
    for changes in _on_as_many_workers(config):
        for change in changes:
            fitting = _fitting(config, change, room)
            if fitting is not None:
                found.append((fitting.simulate(by_group=True).step_s, change))
                break
    if found:
        step_s, change = min(found, key=lambda one: one[0])
        return (
            f"the cheapest change that fits is {_words(change)}, with which a step takes "
            f"{step_s / before_s:.2f} times as long"
        )
    more = sorted(
        _on_more_workers(config.parallel),
        key=lambda change: _with(config, **change).parallel.workers,
    )
    for change in more:
        if _fitting(config, change, room) is not None:
            workers = _with(config, **change).parallel.workers
            return (
                f"on {config.parallel.workers} workers nothing helps; the cheapest change that "
                f"fits is {_words(change)}, which takes {workers} workers"
            )
    return (
        "neither fewer micro-batches in flight, nor computing activations again, nor "
        f"{_MORE[-1]} times as many workers help; use shorter sequences, or a smaller model"
    )


Change = dict[str, object]


def _on_as_many_workers(config: RunConfig) -> Iterator[list[Change]]:
    """Changes of one setting each, by setting, the mildest first."""
    parallel = config.parallel
    if not config.train.loss.balances_step:
        yield [
            {"in_flight": max(1, round(share * parallel.in_flight))}
            for share in (0.75, 0.5, 0.35, 0.25, 0.15, 0.1, 0.0)
        ]
    more = {"none": ("attention", "experts", "all"), "attention": ("all",), "experts": ("all",)}
    yield [{"recompute": again} for again in more.get(parallel.recompute, ())]
    least = parallel.attention_workers
    sizes = sorted(divisors(parallel.micro_batch_size), reverse=True)[1:]
    yield [{"micro_batch_size": size} for size in sizes if size % least == 0]


def _on_more_workers(parallel: ParallelConfig) -> Iterator[Change]:
    for times in _MORE:
        if parallel.schedule in COLOCATED:
            both = times * parallel.attention_workers
            yield {"attention_workers": both, "expert_workers": both}
        else:
            yield {"expert_workers": times * parallel.expert_workers}
            yield {"attention_workers": times * parallel.attention_workers}
        groups = times * parallel.groups
        yield {"groups": groups, **({"residual": "auto"} if parallel.groups == 1 else {})}


def _fitting(config: RunConfig, change: Change, room: Room) -> Trial | None:
    changed = _with(config, **change)
    if problems(changed) or _is_hopeless(changed, room):
        return None
    tried = trial(_with_depth(changed))
    return tried if _lack(tried, room) is None else None


def _words(change: Change) -> str:
    shown = {key: value for key, value in change.items() if key != "residual"}
    return " and ".join(f"parallel.{key} = {format_value(value)}" for key, value in shown.items())
