"""The run directory."""

import json
import os
import re
import time
from contextlib import closing
from pathlib import Path

import pytest

from disagmoe.api.rundir import (
    MetricsLog,
    RunDir,
    check_folder,
    check_free,
    default_run_dir,
    run_id,
)
from disagmoe.api.tally import Tally
from disagmoe.config.load import override
from disagmoe.config.run import RunConfig
from disagmoe.errors import ConfigError
from tests.unit.api.runs import evaluation, step

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def config() -> RunConfig:
    return RunConfig.load(ROOT / "configs/tiny.toml")


def test_a_run_that_is_not_told_goes_below_runs() -> None:
    now = time.strptime("2030-01-02 03:04:05", "%Y-%m-%d %H:%M:%S")
    assert default_run_dir("tiny", now) == Path("runs/tiny-20300102-030405")


def test_a_run_has_a_name_of_its_own_in_ray() -> None:
    names = {run_id(Path("/runs/my run!")) for _ in range(2)}
    assert len(names) == 2
    assert all(re.fullmatch(r"my-run-[0-9a-f]{8}", name) for name in names)
    assert run_id(Path("/")).startswith("run-")


@pytest.mark.parametrize("exists", [True, False])
def test_a_new_or_empty_directory_is_taken(tmp_path: Path, config: RunConfig, exists: bool) -> None:
    path = tmp_path / "a" / "b"
    if exists:
        path.mkdir(parents=True)
    run_dir = RunDir(path, config)
    assert RunConfig.load(path / "config.toml") == config
    result = Tally().result(
        "stopped", first_error=None, peak_memory_total_bytes=0, elapsed_s=1.0, path=run_dir.path
    )
    run_dir.write_result(result)
    run_dir.close()
    assert (path / "result.json").read_text() == result.to_json() + "\n"
    assert sorted(os.listdir(path)) == ["config.toml", "logs", "metrics.jsonl", "result.json"]


@pytest.mark.parametrize("name", ["config.toml", "result.json"])
def test_a_run_is_never_overwritten(tmp_path: Path, config: RunConfig, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match=r"already holds a run; go on with it by --resume /"):
        RunDir(tmp_path, config)
    assert (tmp_path / name).read_text() == "mine"
    assert os.listdir(tmp_path) == [name]


def test_a_directory_with_other_things_is_refused(tmp_path: Path, config: RunConfig) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(ConfigError, match=r"is not empty \(it holds thesis\.tex\); name a new"):
        RunDir(tmp_path, config)
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="is a file; name a directory with --run-dir"):
        check_free(tmp_path / "file")


def test_a_place_that_cannot_be_is_refused(tmp_path: Path, config: RunConfig) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match=r"cannot make the run directory .*: Not a directory"):
        RunDir(tmp_path / "file" / "run", config)


def test_two_runs_at_once_cannot_share(
    tmp_path: Path, config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("disagmoe.api.rundir.check_free", lambda path: None)
    with (
        closing(RunDir(tmp_path, config)),
        pytest.raises(ConfigError, match="was taken by another run just now"),
    ):
        RunDir(tmp_path, config)


def test_a_run_goes_on_in_its_directory(tmp_path: Path, config: RunConfig) -> None:
    path = tmp_path / "run"
    with closing(RunDir(path, config)) as run_dir:
        for number in range(4):
            run_dir.metrics.step(step(number))
    (path / "result.json").write_text("{}")
    changed = override(config, ["train.steps=9"])
    with closing(RunDir.reopen(path, changed, 3)) as run_dir:
        assert run_dir.news == [
            "metrics.jsonl: 1 line after step 3 cut off, which had been done but not saved, and "
            "are done again"
        ]
        assert not (path / "result.json").exists()
        run_dir.metrics.step(step(3, loss=7.0))
    assert RunConfig.load(path / "config.toml") == changed
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert [(row["step"], row["loss"]) for row in rows] == [(0, 5.0), (1, 4.0), (2, 3.0), (3, 7.0)]


def test_a_run_that_still_runs_is_left_alone(tmp_path: Path, config: RunConfig) -> None:
    path = tmp_path / "run"
    with closing(RunDir(path, config)) as run_dir:
        run_dir.metrics.step(step(0))
        with pytest.raises(ConfigError, match=r"another process is running the run in"):
            RunDir.reopen(path, config, 0)
    assert (path / "metrics.jsonl").read_text().count("\n") == 1


@pytest.mark.parametrize(
    ("text", "at", "left", "news"),
    [
        ("", 0, [], []),
        ("", 2, [], ["has no line of steps 1 to 2"]),
        ("0 1 2", 3, [0, 1, 2], []),
        ("0 1 2", 0, [], ["3 lines after step 0 cut off"]),
        ("0 1 2", 1, [0], ["2 lines after step 1 cut off"]),
        ("0 1 2", 5, [0, 1, 2], ["has no line of steps 4 to 5"]),
        ("5 6", 6, [5], ["1 line after step 6 cut off"]),
        ("5 6", 4, [], ["2 lines after step 4 cut off", "has no line of steps 1 to 4"]),
        ("0 1 torn", 2, [0, 1], ["1 line after step 2 cut off"]),
    ],
)
def test_metrics_are_cut_where_a_run_goes_on(
    tmp_path: Path, config: RunConfig, text: str, at: int, left: list[int], news: list[str]
) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [
        '{"step": 9' if word == "torn" else json.dumps({"step": int(word)}) + "\n"
        for word in text.split()
    ]
    path.write_text("".join(lines))
    with closing(MetricsLog(path, config)) as metrics:
        said = metrics.cut(at)
        metrics.step(step(at))
    assert len(said) == len(news)
    assert all(part in line for part, line in zip(news, said, strict=True))
    steps = [json.loads(line)["step"] for line in path.read_text().splitlines()]
    assert steps == [*left, at]


def test_a_metrics_line_holds_its_evaluation_and_is_there_at_once(
    tmp_path: Path, config: RunConfig
) -> None:
    path = tmp_path / "metrics.jsonl"
    metrics = MetricsLog(path, override(config, ["train.steps=4", "train.eval.every=2"]))
    counts = []
    for event in (step(0), step(1), evaluation(1), step(2, loss=float("nan")), step(3)):
        if hasattr(event, "grad_norm"):
            metrics.step(event)
        else:
            metrics.evaluation(event)
        counts.append(len(path.read_text().splitlines()))
    metrics.close()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert counts == [1, 1, 2, 3, 3]
    assert [(row["step"], row["loss"], row.get("eval_loss")) for row in rows] == [
        (0, 5.0, None),
        (1, 4.0, 7.0),
        (2, None, None),
        (3, 2.0, None),
    ]
    assert rows[1]["eval_s"] == 0.5
    assert rows[1]["compute_share"] == {"A0": 0.75, "F0": 0.5}
    assert rows[1]["shares"]["F0"] == {
        "utilisation": 0.5, "exposed_communication": 0.5, "bubble": 0.0,
    }  # fmt: skip
    assert rows[1]["channel_bytes"] == {"A0>F0.act": 65}


@pytest.mark.parametrize("path", [Path("s3://bucket/runs/x"), Path("file:///mnt/x")])
def test_a_uri_is_not_made_into_a_folder(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"looks like a URI; name a folder that all nodes see"):
        check_folder(path, {})
    check_folder(Path("runs/s3:x"), {})
