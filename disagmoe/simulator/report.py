"""A simulated step in words and as one JSON object."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from disagmoe.schedule.accounting import Shares
from disagmoe.schedule.layout import Side, Worker
from disagmoe.simulator.hops import near_beside_network
from disagmoe.simulator.simulate import Memory, Result
from disagmoe.units import format_bytes, format_seconds

_PATH_LINES = 4


def as_json(result: Result) -> dict[str, Any]:
    """All figures; times in seconds, sizes in bytes."""
    return {
        "step_s": result.step_s,
        "makespan_s": result.makespan_s,
        "end_s": result.end_s,
        "lower_bound_s": result.bound.time,
        "bound": result.bound.name,
        "gap": result.gap,
        "tokens_per_s": result.tokens_per_s,
        "mfu": result.mfu,
        **asdict(result.shares),
        "groups": [
            {"group": name, **asdict(Shares.of(seconds)), "seconds": dict(seconds)}
            for name, seconds in result.seconds.items()
        ],
        "critical_path": {
            "compute": dict(result.path.compute),
            "network": dict(result.path.network),
            "sends": result.path.sends,
        },
        "nvlink": _nvlink_json(result),
        "fits": result.fits,
        "memory": [memory_json(one) for one in result.memory],
        "operations": result.operations,
    }


def _nvlink_json(result: Result) -> dict[str, float]:
    found = near_beside_network(result.engine)
    return {"busy_s": found.busy_s, "beside_network_share": found.share}


def memory_json(one: Memory) -> dict[str, Any]:
    """Bytes of one worker by what they are for."""
    return {
        "worker": one.worker,
        **asdict(one.use),
        "total": one.use.total,
        "available": one.available,
        "fits": one.fits,
    }


def as_text(result: Result) -> str:
    """A few lines on the step, a table of groups, one of memory, and the critical path."""
    shares = result.shares
    return "\n".join(
        (
            f"step {format_seconds(result.step_s)} (of it {format_seconds(result.end_s)} sums of "
            f"gradients and update), {result.tokens_per_s:,.0f} tokens/s, "
            f"MFU {100 * result.mfu:.1f} %",
            f"makespan {format_seconds(result.makespan_s)}, lower bound "
            f"{format_seconds(result.bound.time)} ({result.bound.name}), "
            f"gap {100 * (result.gap - 1):.1f} %",
            f"utilisation {100 * shares.utilisation:.1f} %, exposed communication "
            f"{100 * shares.exposed_communication:.1f} %, bubble {100 * shares.bubble:.1f} %",
            "",
            *_groups(result),
            *_nvlink(result),
            "",
            *memory_lines(result.memory),
            "",
            "longest on the critical path:",
            *_path(result),
        )
    )


def _groups(result: Result) -> list[str]:
    lines = ["group   utilisation  exposed  bubble"]
    for name, seconds in result.seconds.items():
        one = Shares.of(seconds)
        lines.append(
            f"{name:<7} {100 * one.utilisation:9.1f} %  {100 * one.exposed_communication:5.1f} %  "
            f"{100 * one.bubble:4.1f} %"
        )
    return lines


def _nvlink(result: Result) -> list[str]:
    found = near_beside_network(result.engine)
    if not found.busy_s:
        return []
    return [
        f"NVLink is busy for {format_seconds(found.busy_s)} of all workers' time, "
        f"{100 * found.share:.0f} % of it while network cards of the same worker are"
    ]


def memory_lines(memory: Sequence[Memory]) -> list[str]:
    """The fullest worker of each side, by what fills it."""
    workers = _fullest(memory)
    names = [name for name in asdict(workers[0].use) if name != "worst_case"]
    head = "".join(f"{name:>11}" for name in (*names, "total", "available"))
    lines = [f"memory  {head}"]
    for one in workers:
        sizes = [*(getattr(one.use, name) for name in names), one.use.total, one.available]
        row = "".join(f"{format_bytes(size):>11}" for size in sizes)
        lines.append(f"{one.worker:<8}{row}{'' if one.fits else '  does not fit'}")
    worst = max(workers, key=lambda one: one.use.worst_case)
    if worst.use.worst_case:
        more = format_bytes(worst.use.worst_case)
        lines.append(
            f"headroom is part of the total; if all tokens of a layer came to {worst.worker}, it "
            f"would take {more}"
        )
    return lines


def _fullest(memory: Sequence[Memory]) -> list[Memory]:
    """One of each side."""
    by_side: dict[Side, Memory] = {}
    for one in memory:
        side = Worker.parse(one.worker).group.side
        if side not in by_side or one.use.total > by_side[side].use.total:
            by_side[side] = one
    return list(by_side.values())


def _path(result: Result) -> list[str]:
    parts: Mapping[str, float] = {
        **result.path.compute,
        **{f"network {channel}": time for channel, time in result.path.network.items()},
        "waits until a payload has left": result.path.sends,
    }
    ranked = sorted(parts.items(), key=lambda part: (-part[1], part[0]))
    whole = result.makespan_s
    return [f"  {100 * time / whole:5.1f} %  {name}" for name, time in ranked[:_PATH_LINES]]
