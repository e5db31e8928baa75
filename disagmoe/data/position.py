"""Where the data of a run stands: what a checkpoint keeps of it, and how a resume goes on from it.

The order of a path's sequences is a function of a few settings (order.py), and so is the mix of
paths (mix.py). So the position is two counts: sequences that the mix has given, and sequences that
have been read of each path.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pydantic import Field

from disagmoe.config.base import Section
from disagmoe.errors import DataError


class PathPosition(Section):
    """How far one path has been read."""

    path: str
    """As in `data.paths`."""
    fingerprint: str
    """Hash of its tokens."""
    order: str
    """Hash of all that decides the order of its sequences."""
    epoch: int
    """Times that all of it has been read."""
    position: int
    """Sequences read of that epoch."""
    sequences: int
    """Sequences read over all epochs."""


class DataPosition(Section):
    """Which sequences come next."""

    mixed: int = 0
    """Sequences that the mix of paths has given since it began."""
    weights: list[float] = Field(default_factory=list)
    """Shares of the paths in the mix."""
    paths: list[PathPosition] = Field(default_factory=list)
    """One for each of `data.paths`."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a source begins: step `step` gets what the mix gives after `mixed` sequences."""

    step: int = 0
    mixed: int = 0
    ahead: tuple[int, ...] = ()
    """Sequences that each path has given beside those that this mix counts; () for none."""


def origin_after(
    step: int, saved: DataPosition, now: DataPosition, counts: Callable[[int], Sequence[int]]
) -> tuple[Origin, list[str]]:
    """Return the origin of a run that goes on at `step` where `saved` stood, and what is new.

    `now` is the position of the new run's data before anything is read, and `counts` says how many
    of the first g sequences of its mix each path gives. A path in the same order as before goes on
    where it stood, whatever its share; another one begins at its beginning, which is said.

    Raises DataError where a path holds other tokens than when the checkpoint was saved.
    """
    _check_tokens(saved, now)
    orders = [path.order for path in now.paths]
    if now.weights == saved.weights and orders == [path.order for path in saved.paths]:
        given = counts(saved.mixed)
        ahead = [path.sequences - n for path, n in zip(saved.paths, given, strict=True)]
        return Origin(step, saved.mixed, tuple(ahead)), []
    left = list(saved.paths)
    ahead, news = [], []
    for path in now.paths:
        before = next((known for known in left if known.order == path.order), None)
        if before is None:
            news.append(
                f"data: {path.path} is read from its beginning; it is new, or in another order "
                "than before (train.seed, train.sequence_length and the held-out part decide that)"
            )
            ahead.append(0)
        else:
            left.remove(before)
            ahead.append(before.sequences)
    news += [f"data: {path.path} is not read any more" for path in left]
    if not news:
        news = ["data: the paths go on where they stood, mixed anew"]
    return Origin(step, 0, tuple(ahead)), news


def _check_tokens(saved: DataPosition, now: DataPosition) -> None:
    known = {path.path: path.fingerprint for path in saved.paths}
    for path in now.paths:
        if known.get(path.path, path.fingerprint) != path.fingerprint:
            raise DataError(
                f"{path.path}: holds other tokens than when the checkpoint was saved, so the run "
                "cannot go on where it was; put back what was there, or name the new data by "
                "another path in data.paths, which is then read from its beginning"
            )
