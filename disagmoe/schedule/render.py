"""A timeline as text, and the few numbers that sum up each group."""

from collections.abc import Sequence
from dataclasses import dataclass

from disagmoe.errors import ScheduleError
from disagmoe.schedule.accounting import Shares
from disagmoe.schedule.bars import BACKWARD, FORWARD, Bar, Chart, Shade
from disagmoe.schedule.compile import Compiled
from disagmoe.schedule.layout import Group
from disagmoe.schedule.passes.lifetime import peak_slots

LEGEND = (
    "0-9: forward of micro-batch 0-9; a-j: backward of micro-batch 0-9 (head: forward and "
    "backward);\ntens of the micro-batch are left out; '-': waits for the network; '.': waits for "
    "others"
)
STEP_LEGEND = "*: data, optimizer; +: sends, sums of gradients"
"""What a measured step has besides."""
_FORWARD, _BACKWARD, _IDLE = "0123456789", "abcdefghij", "."
_MARKS = {Shade.NETWORK: "-", Shade.SEND: "+", Shade.DATA: "*", Shade.OPTIMIZER: "*"}
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """What a group has to do in a step."""

    group: Group
    shares: Shares
    """What becomes of its time."""
    peak_slots: int
    """Largest number of slots that hold memory at once."""
    instructions: int
    """Length of its program."""


def summarize(compiled: Compiled, chart: Chart) -> tuple[GroupSummary, ...]:
    """Return one summary per group, in the order of the layout; `chart` is that of the plan."""
    programs = compiled.programs
    return tuple(
        GroupSummary(
            group=program.group,
            shares=Shares.of(chart.seconds[str(program.group)]),
            peak_slots=peak_slots(program.instructions, program.group, programs.spec),
            instructions=len(program.instructions),
        )
        for program in programs.programs
    )


def draw(chart: Chart, *, width: int, start: float = 0.0, end: float | None = None) -> str:
    """Draw one row per group or worker over `width` columns of equal time, from `start` to `end`
    (the whole chart when None). A column shows what fills most of it.

    Raises:
        ScheduleError: `width` is below 10, or `start` to `end` is no span of time.
    """
    if width < 10:
        raise ScheduleError(f"{width} columns are too few for a timeline; use 10 or more")
    start, end = chart.span(start, end)
    margin = max(map(len, chart.workers))
    rows = [_scale(margin, width, start, end)]
    lanes: dict[str, list[Bar]] = {worker: [] for worker in chart.workers}
    for bar in chart.bars:
        if bar.lane in lanes and bar.shade is not Shade.OTHERS:
            lanes[bar.lane].append(bar)
    for worker, bars in lanes.items():
        rows.append(f"{worker:>{margin}} {_row(bars, width, start, end)}")
    return "\n".join(rows)


def _scale(margin: int, width: int, start: float, end: float) -> str:
    left, right = f"{start:g}", f"{end:g}"
    return f"{'':{margin}} {left}{right:>{width - len(left)}}"


def _row(bars: Sequence[Bar], width: int, start: float, end: float) -> str:
    step = (end - start) / width
    # time of each column that is still free, and the longest bar in it
    idle = [step] * width
    most = [0.0] * width
    marks = [_IDLE] * width
    for bar in bars:
        first = max(0, int((bar.start - start) / step))
        last = min(width - 1, int((bar.end - start) / step))
        for column in range(first, last + 1):
            left = start + column * step
            covered = min(bar.end, left + step) - max(bar.start, left)
            idle[column] -= max(0.0, covered)
            if covered > most[column] + step * _ROUNDING:
                most[column] = covered
                marks[column] = _mark(bar)
    return "".join(
        mark if longest + step * _ROUNDING >= free else _IDLE
        for mark, longest, free in zip(marks, most, idle, strict=True)
    )


def _mark(bar: Bar) -> str:
    if bar.mb is None or bar.shade not in FORWARD | BACKWARD:
        return _MARKS[bar.shade]
    return (_BACKWARD if bar.shade in BACKWARD else _FORWARD)[bar.mb % 10]
