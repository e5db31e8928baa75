"""What a report is made from, at any moment of a run."""

from pathlib import Path

import pytest

from disagmoe.errors import ConfigError
from disagmoe.report.rundata import read_run
from tests.unit.report.runs import add_result, add_trace, run_dir


def test_a_run_under_way(tmp_path: Path) -> None:
    path = run_dir(tmp_path / "r")
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "lo')  # being written
    run = read_run(path)
    assert run.status == "running"
    assert [step["step"] for step in run.steps] == [0, 1, 2]
    assert (run.result, run.traced) == (None, None)
    assert run.config.train.steps == 8


def test_a_run_that_has_ended(tmp_path: Path) -> None:
    path = run_dir(tmp_path / "r")
    add_result(path, status="failed")
    add_trace(path)
    run = read_run(path)
    assert run.status == "failed"
    assert run.traced is not None
    assert list(run.traced) == ["A0.0", "F0.0"]


def test_a_run_before_its_first_step(tmp_path: Path) -> None:
    assert read_run(run_dir(tmp_path / "r", steps=0)).steps == ()


def test_no_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no config\.toml; name the directory of a run"):
        read_run(tmp_path)


@pytest.mark.parametrize("name", ["metrics.jsonl", "result.json"])
def test_a_damaged_file_is_named(name: str, tmp_path: Path) -> None:
    path = run_dir(tmp_path / "r")
    (path / name).write_text("nonsense\n")
    with pytest.raises(ConfigError, match=rf"{name}.* is not JSON"):
        read_run(path)


def test_steps_of_another_version_are_refused(tmp_path: Path) -> None:
    path = run_dir(tmp_path / "r", steps=0)
    (path / "metrics.jsonl").write_text('{"step": 0, "loss": 1.0}\n')
    with pytest.raises(ConfigError, match=r"line 1 has no channel_bytes: another version has"):
        read_run(path)
