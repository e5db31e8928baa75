"""A checkpoint is complete only if it holds all of the model once."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from disagmoe.checkpoint.manifest import MANIFEST
from tests.unit.checkpoint.saved import Cuts, saved, values

SHAPES = {"a": (4, 6), "b": (7,)}


@pytest.mark.parametrize(
    ("cuts", "message"),
    [
        ([{"a": [(0, 24)]}], r"b is not saved exactly once: \[\] of 7"),
        (
            [{"a": [(0, 24)], "b": [(0, 7)]}, {"b": [(0, 7)]}],
            r"b is not saved exactly once: \[\(0, 7, 0\), \(0, 7, 1\)\] of 7",
        ),
        (
            [{"a": [(0, 10)]}, {"a": [(12, 24)], "b": [(0, 7)]}],
            r"a is not saved exactly once: \[\(0, 10, 0\), \(12, 24, 1\)\] of 24",
        ),
        (
            [{"a": [(0, 14)]}, {"a": [(12, 24)], "b": [(0, 7)]}],
            r"a is not saved exactly once: \[\(0, 14, 0\), \(12, 24, 1\)\] of 24",
        ),
    ],
    ids=["none of it", "all of it twice", "a hole", "an overlap"],
)
def test_what_is_not_saved_exactly_once_is_no_checkpoint(
    tmp_path: Path, cuts: Sequence[Cuts], message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        saved(tmp_path, values(SHAPES), cuts)
    assert not (tmp_path / "step-1" / MANIFEST).exists()
