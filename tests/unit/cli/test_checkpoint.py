"""`disagmoe checkpoint show`."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner
from typer.testing import Result as Outcome

from disagmoe.checkpoint.catalogue import set_aside
from disagmoe.cli.main import app
from disagmoe.errors import CheckpointError
from disagmoe.storage import Location
from tests.unit.checkpoint.saved import small


def show(*arguments: object) -> Outcome:
    return CliRunner().invoke(app, ["checkpoint", "show", *map(str, arguments)])


def test_one_line_for_each_step(tmp_path: Path) -> None:
    for step in (2, 10, 14):
        small(tmp_path, step)
    (tmp_path / "step-12").mkdir()
    set_aside(Location.parse(str(tmp_path)), 10)
    outcome = show(tmp_path)
    assert outcome.exit_code == 0, outcome.output
    folder, header, *rows, left, aside = outcome.stdout.splitlines()
    assert folder == str(tmp_path)
    assert " ".join(header.split()) == "step layout type files bytes parameters age check"
    assert [row.split()[0] for row in rows] == ["2", "10"]
    assert all(row.endswith("sizes ok") for row in rows)
    assert left == "left by interrupted saves, and ignored: step-12"
    assert aside == (
        "set aside, as the run went on from an earlier step: step-14 (rename "
        "manifest.set-aside.json to manifest.json to have one back)"
    )
    assert json.loads(show(tmp_path, "--json").stdout)["set_aside"] == [14]


def test_one_step_in_detail(tmp_path: Path) -> None:
    for step in (2, 10):
        small(tmp_path, step)
    outcome = show(f"{tmp_path}@2", "--verify")
    lines = outcome.stdout.splitlines()
    assert lines[2].endswith("content ok")
    assert lines[3].endswith(" by disagmoe 1")
    assert lines[4] == "2 steps, 2 updates, 200 tokens, loss 4.5000; programs 00"
    assert lines[5].split() == ["group", "workers", "parameters", "bytes"]
    assert lines[6].split()[:3] == ["A0", "2", "31"]
    assert lines[7].split() == ["worker", "file", "bytes"]
    assert [line.split()[:2] for line in lines[8:]] == [
        ["A0.0", "A0.0.safetensors"],
        ["A0.1", "A0.1.safetensors"],
    ]


def test_json_is_one_object(tmp_path: Path) -> None:
    _, manifest = small(tmp_path, 2)
    outcome = show(tmp_path, "--json")
    shown = json.loads(outcome.stdout)
    assert (shown["folder"], shown["ok"], shown["incomplete"]) == (str(tmp_path), True, [])
    (one,) = shown["checkpoints"]
    assert (one["step"], one["tokens"], one["bytes"]) == (2, 200, manifest.size_bytes)
    assert (one["checked"], one["problems"]) == ("sizes", [])
    assert 0 <= one["age_s"] < 100


def test_damage_is_told_and_is_a_failure(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        small(tmp_path, step)
    (tmp_path / "step-1/A0.0.safetensors").unlink()
    changed = tmp_path / "step-2/A0.1.safetensors"
    changed.write_bytes(bytes(changed.stat().st_size))
    (tmp_path / "step-3/manifest.json").write_text("{")
    outcome = show(tmp_path)
    assert outcome.exit_code == 1
    lines = outcome.stdout.splitlines()
    assert [line.split()[-2:] for line in lines[2:5]] == [
        ["1", "problem"],
        ["sizes", "ok"],
        ["1", "problem"],
    ]
    assert lines[5] == f"step-1: {tmp_path}/step-1/A0.0.safetensors: is missing"
    assert lines[6].startswith(f"step-3: {tmp_path}/step-3/manifest.json: is damaged")
    outcome = show(f"{tmp_path}@2", "--verify")
    assert outcome.exit_code == 1
    assert f"step-2: {changed}: its bytes from 0 to 64 are not those that were" in outcome.stdout


def test_no_checkpoint_is_an_error(tmp_path: Path) -> None:
    outcome = show(tmp_path)
    assert isinstance(outcome.exception, CheckpointError)
    with pytest.raises(CheckpointError, match="holds no complete checkpoint"):
        raise outcome.exception
