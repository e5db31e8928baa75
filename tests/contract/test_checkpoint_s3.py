"""Checkpoints on an object store: a server that speaks S3, without directories and renames."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from moto.server import ThreadedMotoServer
from pyarrow import fs as pafs

from disagmoe.actors.events import CheckpointSaved, RunEnded, StepResult
from disagmoe.actors.messages import ResumePoint
from disagmoe.checkpoint.catalogue import (
    complete_steps,
    delete_incomplete,
    incomplete_steps,
    retain,
    set_aside,
    set_aside_steps,
    step_place,
)
from disagmoe.checkpoint.check import content_problems, size_problems
from disagmoe.checkpoint.find import find
from disagmoe.checkpoint.load import Wanted, load
from disagmoe.checkpoint.manifest import MANIFEST
from disagmoe.checkpoint.slices import Kind, Slice
from disagmoe.config.run import RunConfig
from disagmoe.data.position import Origin
from disagmoe.data.source import FixedSource
from disagmoe.errors import CheckpointError
from disagmoe.storage import Location
from tests.unit.actors.threadcrew import run_of
from tests.unit.checkpoint.saved import parts, saved, small, values
from tests.unit.runtime.tiny import batch_of, tiny

pytestmark = pytest.mark.gloo  # a server on a socket


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Query of a URI on the server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "tester")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        query = f"scheme=http&endpoint_override={host}:{port}&region=us-east-1"
        made, _ = pafs.FileSystem.from_uri(f"s3://bucket?{query}&allow_bucket_creation=true")
        made.create_dir("bucket")
        yield query
        server.stop()


@pytest.fixture
def folder(server: str, request: pytest.FixtureRequest) -> Location:
    """A folder of the test's own, as a user names it."""
    return Location.parse(f"s3://bucket/{request.node.name}?{server}")


def test_what_is_saved_is_found_and_loaded(folder: Location) -> None:
    whole = values({"a": (40, 60), "b": (7,)})
    place, manifest = saved(
        folder, whole, [{"a": [(0, 1000)]}, {"a": [(1000, 2400)]}, {"b": [(0, 7)]}]
    )
    assert size_problems(place, manifest) == content_problems(place, manifest) == []
    found = find(str(folder))
    assert (found.manifest, str(found.place)) == (manifest, str(place))
    assert found.folder.run_dir is None
    item = Wanted(Slice("a", (40, 60), 990, 1010), Kind.EXP_AVG, torch.empty(20))
    load(found.place, found.manifest, [item])
    assert torch.equal(item.target, whole[Kind.EXP_AVG, "a"].flatten()[990:1010])


def test_a_checkpoint_is_there_once_its_manifest_is(folder: Location) -> None:
    small(folder, 1)
    parts(step_place(folder, 2), values({"a": (3,)}), [{"a": [(0, 3)]}])
    assert (complete_steps(folder), incomplete_steps(folder)) == ([1], [2])
    assert find(str(folder)).manifest.step == 1
    assert delete_incomplete(folder) == [2]
    assert folder.names() == ["step-1"]


def test_old_ones_are_deleted_and_later_ones_set_aside(folder: Location) -> None:
    for step in (1, 2, 3, 4):
        small(folder, step)
    assert retain(folder, 3) == [1]
    assert set_aside(folder, 3) == [4]
    assert complete_steps(folder) == [2, 3]
    assert incomplete_steps(folder) == []


def test_damage_is_found(folder: Location) -> None:
    place, manifest = small(folder)
    (place / "A0.1.safetensors").write_bytes(b"x" * manifest.files[1].size_bytes)
    place.fs.delete_file((place / "A0.0.safetensors").path)
    assert size_problems(place, manifest) == [f"{place / 'A0.0.safetensors'}: is missing"]
    missing, changed = content_problems(place, manifest)
    assert "A0.0.safetensors?" in missing
    assert "its bytes from 0 to 64 are not those that were written" in changed


def test_a_bucket_that_is_not_there_is_an_error(server: str) -> None:
    nowhere = Location.parse(f"s3://nowhere/run?{server}")
    with pytest.raises(CheckpointError, match=r"A0\.0 cannot write .* s3://nowhere/run/step-1/A0"):
        small(nowhere)
    assert MANIFEST not in os.listdir()


def steps_of(
    config: RunConfig, folder: Path, place: Location, point: ResumePoint | None = None
) -> tuple[list[StepResult], list[int]]:
    """The steps of a run that saves to `place`, and the steps that it has saved."""
    source = FixedSource([batch_of(config, seed) for seed in range(4)])
    with run_of(config, folder, source, point, checkpoints=str(place)) as (_, events):
        seen = list(events)
    assert seen[-1] == RunEnded(status="ok")
    saved_steps = [event.step for event in seen if isinstance(event, CheckpointSaved)]
    return [event for event in seen if isinstance(event, StepResult)], saved_steps


def test_a_run_saves_there_and_goes_on(folder: Location, tmp_path: Path) -> None:
    config = tiny(train__steps=4, checkpoint__interval_steps=2)
    straight, saved_steps = steps_of(config, tmp_path, folder)
    assert saved_steps == complete_steps(folder) == [2, 4]
    found = find(f"{folder.root}{folder.path}/step-2{folder.query}")
    point = ResumePoint(
        place=str(found.place),
        done=found.manifest.done,
        origin=Origin(2),
        programs_sha256=found.manifest.programs_sha256,
    )
    again, saved_steps = steps_of(config, tmp_path, folder, point)
    assert saved_steps == [4]
    assert set_aside_steps(folder) == []
    assert [(s.step, s.loss, s.grad_norm) for s in again] == [
        (s.step, s.loss, s.grad_norm) for s in straight[2:]
    ]
