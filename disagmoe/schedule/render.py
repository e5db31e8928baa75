"""A timeline as text, and the few numbers that sum it up."""

from dataclasses import dataclass

from disagmoe.errors import ScheduleError
from disagmoe.schedule.compile import Compiled
from disagmoe.schedule.ir import BACKWARD_OPS
from disagmoe.schedule.layout import Group
from disagmoe.schedule.passes.lifetime import peak_slots
from disagmoe.schedule.timeline import Span, Timeline

LEGEND = (
    "0-9: forward of micro-batch 0-9; a-j: backward of micro-batch 0-9 (head: forward and "
    "backward);\ntens of the micro-batch are left out; '.': idle"
)
_FORWARD, _BACKWARD, _IDLE = "0123456789", "abcdefghij", "."
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """What a group has to do in a step."""

    group: Group
    busy_share: float
    """Time that it computes, as a share of the makespan."""
    peak_slots: int
    """Largest number of slots that hold memory at once."""
    instructions: int
    """Length of its program."""


def summarize(compiled: Compiled) -> tuple[GroupSummary, ...]:
    """Return one summary per group, in the order of the layout."""
    programs, timeline = compiled.programs, compiled.timeline
    return tuple(
        GroupSummary(
            group=program.group,
            busy_share=_share(timeline.busy(program.group), timeline.makespan),
            peak_slots=peak_slots(program.instructions, program.group, programs.spec),
            instructions=len(program.instructions),
        )
        for program in programs.programs
    )


def bubble(compiled: Compiled) -> float:
    """Return the mean idle share of the groups: 1 - sum of busy times / (groups x makespan)."""
    shares = [summary.busy_share for summary in summarize(compiled)]
    return 1 - sum(shares) / len(shares)


def draw(
    timeline: Timeline,
    groups: tuple[Group, ...],
    *,
    width: int,
    start: float = 0.0,
    end: float | None = None,
) -> str:
    """Draw one row per group over `width` columns of equal time, from `start` to `end` (the whole
    timeline when None). A column shows the op that fills most of it, or idle.

    Raises:
        ScheduleError: `width` is below 10, or `start` to `end` is no span of time.
    """
    end = timeline.makespan if end is None else end
    if width < 10:
        raise ScheduleError(f"{width} columns are too few for a timeline; use 10 or more")
    if not 0 <= start < end:
        raise ScheduleError(f"cannot draw from {start:g} to {end:g}; give 0 <= from < to")
    margin = max(len(str(group)) for group in groups)
    rows = [_scale(margin, width, start, end)]
    for group in groups:
        spans = [span for span in timeline.spans if span.group == group]
        rows.append(f"{group!s:>{margin}} {_row(spans, width, start, end)}")
    return "\n".join(rows)


def _scale(margin: int, width: int, start: float, end: float) -> str:
    left, right = f"{start:g}", f"{end:g}"
    return f"{'':{margin}} {left}{right:>{width - len(left)}}"


def _row(spans: list[Span], width: int, start: float, end: float) -> str:
    step = (end - start) / width
    # time of each column that is still free, and the longest op in it
    idle = [step] * width
    most = [0.0] * width
    marks = [_IDLE] * width
    for span in spans:
        first = max(0, int((span.start - start) / step))
        last = min(width - 1, int((span.end - start) / step))
        for column in range(first, last + 1):
            left = start + column * step
            covered = min(span.end, left + step) - max(span.start, left)
            idle[column] -= max(0.0, covered)
            if covered > most[column] + step * _ROUNDING:
                most[column] = covered
                marks[column] = _mark(span)
    return "".join(
        mark if longest + step * _ROUNDING >= free else _IDLE
        for mark, longest, free in zip(marks, most, idle, strict=True)
    )


def _mark(span: Span) -> str:
    marks = _BACKWARD if span.compute.op in BACKWARD_OPS else _FORWARD
    return marks[span.compute.mb % 10]


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
