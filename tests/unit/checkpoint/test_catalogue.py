import os
from pathlib import Path

import pytest

from disagmoe.checkpoint.catalogue import (
    check_unused,
    check_writable,
    complete_steps,
    delete_incomplete,
    delete_leftovers,
    incomplete_steps,
    names,
    retain,
    set_aside,
    set_aside_steps,
    step_of,
    step_place,
)
from disagmoe.checkpoint.check import content_problems, size_problems
from disagmoe.errors import CheckpointError
from disagmoe.storage import Location
from tests.unit.checkpoint.saved import small


@pytest.fixture
def folder(tmp_path: Path) -> Location:
    """Steps 2, 9 and 10, what was left of step 11, and things of others."""
    for step in (10, 2, 9, 11):
        small(tmp_path, step)
    (tmp_path / "step-11/manifest.json").unlink()
    (tmp_path / "step-011").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    return Location.parse(str(tmp_path))


def test_complete_ones_are_found_in_order_of_steps(folder: Location) -> None:
    assert complete_steps(folder) == [2, 9, 10]
    assert incomplete_steps(folder) == [11]
    assert complete_steps(folder / "nowhere") == []
    assert [step_of(folder / name) for name in ("step-0", "step-12", "step-x", "a")] == [
        0,
        12,
        None,
        None,
    ]


@pytest.mark.parametrize(
    ("keep_last", "left"), [(0, [2, 9, 10]), (1, [10]), (2, [9, 10]), (7, [2, 9, 10])]
)
def test_the_last_ones_are_kept(folder: Location, keep_last: int, left: list[int]) -> None:
    gone = retain(folder, keep_last)
    assert complete_steps(folder) == left
    assert gone == [step for step in (2, 9, 10) if step not in left]
    assert all(not step_place(folder, step).is_directory() for step in gone)
    assert incomplete_steps(folder) == [11]  # perhaps somebody is writing it


def test_what_is_cut_short_while_it_is_deleted_is_incomplete(folder: Location) -> None:
    deleted = []

    class Dying:
        type_name = "local"

        def delete_file(self, path: str) -> None:
            if deleted:
                raise OSError("killed")
            deleted.append(path)
            os.unlink(path)

        def __getattr__(self, name: str) -> object:
            return getattr(folder.fs, name)

    with pytest.raises(CheckpointError, match=r"step-2: cannot be deleted \(killed\)"):
        retain(Location(Dying(), folder.path), 1)
    assert complete_steps(folder) == [9, 10]
    assert delete_incomplete(folder) == [2, 11]


def test_incomplete_ones_are_deleted_and_nothing_else(folder: Location) -> None:
    (Path(folder.path) / "step-3").mkdir()
    (Path(folder.path) / "step-3/notes.txt").write_text("mine")
    (Path(folder.path) / "step-3/A0.0.safetensors.partial").write_text("half")
    assert delete_incomplete(folder) == [3, 11]
    assert (folder / "step-3").names() == ["notes.txt"]
    assert folder.names() == ["notes.txt", "step-011", "step-10", "step-2", "step-3", "step-9"]
    assert complete_steps(folder) == [2, 9, 10]


def test_what_lies_after_a_step_can_be_set_aside_and_brought_back(folder: Location) -> None:
    assert set_aside(folder, 9) == [10]
    assert complete_steps(folder) == [2, 9]
    assert incomplete_steps(folder) == [11]
    assert set_aside_steps(folder) == [10]
    aside = Path(folder.path) / "step-10/manifest.set-aside.json"
    aside.rename(aside.with_name("manifest.json"))
    assert set_aside_steps(folder) == []
    assert complete_steps(folder) == [2, 9, 10]


def test_a_step_that_is_saved_again_leaves_nothing_of_the_one_before(folder: Location) -> None:
    set_aside(folder, 9)
    place = Path(folder.path) / "step-10"
    for name in ("F7.3.safetensors", "F7.4.safetensors.partial", "notes.txt"):
        (place / name).write_text("old")
    again, manifest = small(folder, 10)
    delete_leftovers(folder, manifest)
    assert again.names() == ["A0.0.safetensors", "A0.1.safetensors", "manifest.json", "notes.txt"]
    assert content_problems(again, manifest) == []


def test_a_folder_of_another_run_is_refused(folder: Location, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"another run \(step-2, step-9, step-10\); resume"):
        check_unused(folder)
    with pytest.raises(CheckpointError, match=r"notes\.txt: is a file; name a folder"):
        check_unused(folder / "notes.txt")
    check_unused(folder / "new")


def test_a_folder_that_cannot_be_written_is_refused_early(folder: Location) -> None:
    check_writable(folder / "new")
    assert (folder / "new").names() == []
    os.symlink("/dev/full", Path(folder.path) / "new/write-test.partial")
    message = (
        r"new: checkpoints cannot be saved there \(No space left on device\); free space or ri"
    )
    with pytest.raises(CheckpointError, match=message):
        check_writable(folder / "new")
    with pytest.raises(CheckpointError, match=r"notes\.txt: checkpoints cannot be saved there"):
        check_writable(folder / "notes.txt")


def test_many_names_are_counted() -> None:
    assert names(range(1, 8)) == "2 earlier ones, step-3, step-4, step-5, step-6, step-7"
    assert names([4]) == "step-4"


def test_files_are_checked_by_size_and_by_content(tmp_path: Path) -> None:
    place, manifest = small(tmp_path)
    assert size_problems(place, manifest) == content_problems(place, manifest) == []
    first = tmp_path / "step-1/A0.0.safetensors"
    content = bytearray(first.read_bytes())
    content[-1] ^= 1
    first.write_bytes(content)
    assert size_problems(place, manifest) == []
    (wrong,) = content_problems(place, manifest)
    assert wrong.startswith(f"{first}: its bytes from ")
    first.unlink()
    assert size_problems(place, manifest) == [f"{first}: is missing"]
