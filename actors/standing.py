"""Where the workers of a run stand, and what follows from it: who keeps whom waiting.

Pure: built from what workers answer, said in the same words by `disagmoe status` and at the end of
every error of a missed deadline.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from disagmoe.actors.messages import Progress
from disagmoe.schedule.layout import Worker

_SLOW = 1.2
"""A worker is called slow from so many times its group's median on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One worker."""

    worker: str
    host: str
    """Empty where it is not known yet."""
    gpu: int | None
    pid: int | None
    progress: Progress | None
    """None where it does not answer."""

    def __str__(self) -> str:
        place = f" on {self.host}" if self.host else ""
        gpu = f" GPU {self.gpu}" if self.gpu is not None else ""
        where = f"{self.worker}{place}{gpu}"
        if self.progress is None:
            return f"{where}: does not answer"
        return f"{where}: {self.progress.where}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """A run at one moment."""

    standings: tuple[Standing, ...]
    """In world-rank order."""
    steps_done: int = 0
    epoch: int = 0
    compute_s: Mapping[str, float] = field(default_factory=dict)
    """What each worker computed in the last step."""
    driver_pid: int | None = None
    stacks: Mapping[str, str] = field(default_factory=dict)
    """Of each worker that was asked for them and has answered."""

    def lines(self) -> Iterator[str]:
        """Say it."""
        times = "" if self.epoch == 0 else f", started again {_count(self.epoch, 'time')}"
        yield f"{_count(self.steps_done, 'step')} done{times}"
        for standing in self.standings:
            yield f"  {standing}"
        yield from verdict(self.standings)
        slowest = slowest_line(self.compute_s)
        if slowest:
            yield slowest
        for worker, text in self.stacks.items():
            yield ""
            yield f"stacks of {worker}:"
            yield text

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "steps": self.steps_done,
            "epoch": self.epoch,
            "driver_pid": self.driver_pid,
            "workers": [asdict(standing) for standing in self.standings],
            "verdict": list(verdict(self.standings)),
            "slowest": slowest_line(self.compute_s) or None,
            "stacks": dict(self.stacks),
        }


def verdict(standings: Sequence[Standing]) -> Iterator[str]:
    """Say who waits for whom, who is the cause, and who has moved last."""
    answered = {s.worker: s.progress for s in standings if s.progress is not None}
    silent = [s.worker for s in standings if s.progress is None]
    waiting: dict[tuple[str, ...], list[str]] = {}
    for worker, progress in answered.items():
        if progress.awaits:
            waiting.setdefault(progress.awaits, []).append(worker)
    for peers, workers in waiting.items():
        yield f"{_and(workers)} {_verb(workers, 'wait')} for {_and(peers)}"
    cause = _cause(answered, silent)
    if cause:
        yield cause
    moved = min(answered.values(), key=lambda p: p.seconds_since_progress, default=None)
    if moved is not None:
        yield f"{moved.worker} has moved last, {moved.seconds_since_progress:.1f} s ago"


def _cause(answered: Mapping[str, Progress], silent: Sequence[str]) -> str:
    if silent:
        does = "does" if len(silent) == 1 else "do"
        return f"{_and(silent)} {does} not answer: dead, suspended, or stuck in native code"
    awaited = {peer for progress in answered.values() for peer in progress.awaits}
    busy = [p for p in answered.values() if not p.awaits and p.worker in awaited]
    if busy:
        longest = max(busy, key=lambda p: p.seconds_since_progress)
        return f"{longest.worker} keeps the others waiting: {longest.where}"
    if awaited and all(progress.awaits for progress in answered.values()):
        last = min(answered.values(), key=lambda p: (p.step, p.instruction_index))
        return f"all wait for each other; {last.worker} is furthest behind: {last.where}"
    return ""


def slowest_line(compute_s: Mapping[str, float]) -> str:
    """Name the worker that computes longest beside its group's median, '' where all are alike."""
    groups: dict[str, dict[str, float]] = {}
    for worker, seconds in compute_s.items():
        groups.setdefault(str(Worker.parse(worker).group), {})[worker] = seconds
    worst: tuple[float, str, float, float] | None = None
    for members in groups.values():
        median = statistics.median_low(members.values())
        worker = max(members, key=lambda name: members[name])
        if median > 0 and (worst is None or members[worker] / median > worst[0]):
            worst = (members[worker] / median, worker, members[worker], median)
    if worst is None or worst[0] < _SLOW:
        return ""
    ratio, worker, seconds, median = worst
    return (
        f"slowest over its group's median: {worker} computes {ratio:.1f} times as long "
        f"({seconds:.3f} s, median {median:.3f} s in the last step)"
    )


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _verb(subjects: Sequence[str], verb: str) -> str:
    return f"{verb}s" if len(subjects) == 1 else verb


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
