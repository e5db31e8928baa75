from collections.abc import Callable
from pathlib import Path

import pytest

from disagmoe.actors.resume import resume_point
from disagmoe.actors.startup import open_data
from disagmoe.checkpoint.find import Found, find
from disagmoe.config.load import override
from disagmoe.data.position import Origin
from disagmoe.data.prepared import PreparedData
from disagmoe.errors import CheckpointError
from tests.unit.checkpoint.saved import TINY, saved, values
from tests.unit.data.conftest import in_process, make_data, prepare_here

__all__ = ["in_process", "make_data", "prepare_here"]  # fixtures

MakeData = Callable[[list[str]], PreparedData]


def saved_with(folder: Path, data: dict[str, object]) -> Found:
    saved(folder, values({"a": (3,)}), [{"a": [(0, 3)]}], step=4, data=data)
    return find(str(folder))


def test_from_a_checkpoint_to_where_the_run_goes_on(make_data: MakeData, tmp_path: Path) -> None:
    path = make_data([f"text {i}" * 5 for i in range(9)]).path
    sets = [f'data.paths=["{path}"]', "model.vocab_size=257"]
    source = open_data(override(TINY, sets))
    found = saved_with(tmp_path / "c", source.position(4).model_dump())
    point, news = resume_point(found, source)
    assert (point.place, point.step, point.done) == (str(found.place), 4, found.manifest.done)
    assert (point.origin, point.programs_sha256, news) == (Origin(4, 28, (0,)), "00", [])


def test_a_position_of_another_kind_is_refused(make_data: MakeData, tmp_path: Path) -> None:
    path = make_data([f"text {i}" * 5 for i in range(9)]).path
    sets = [f'data.paths=["{path}"]', "model.vocab_size=257"]
    found = saved_with(tmp_path / "c", {"shuffled": True})
    message = r"step-4: the position of its data is not readable: (.|\n)*shuffled"
    with pytest.raises(CheckpointError, match=message):
        resume_point(found, open_data(override(TINY, sets)))
