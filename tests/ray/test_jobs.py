"""`ray job submit` as users call it: a folder, an installed wheel, a bad config, a stop."""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from disagmoe.checkpoint.find import find
from disagmoe.cluster.environment import environment
from tests.ray.conftest import ROOT, Launched
from tests.ray.jobs import JOB, Jobs, copy_of, installed_wheel
from tests.ray.nodes import RayNodes, ray_nodes

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]

MODULE = ("--", sys.executable, "-m", "disagmoe", "train")
SETS = (
    *("--set", "parallel.attention_workers=1", "--set", "parallel.expert_workers=1"),
    *("--set", "parallel.profile=off", "--set", "train.eval.every=0"),
)


@pytest.fixture(scope="module")
def head() -> Iterator[RayNodes]:
    with ray_nodes(ROOT, roles=()) as started, environment(started.variables):
        yield started


def result_of(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "result.json").read_text())


def test_a_folder_is_enough_and_its_code_runs_in_all_workers(
    head: RayNodes, small_config: Path, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    shutil.copytree(copy_of("0.0.1+folder", tmp_path) / "disagmoe", work / "disagmoe")
    shutil.copy(small_config, work / "run.toml")
    jobs, run_dir = Jobs(head), tmp_path / "run"
    sets = (*SETS, "--set", "train.steps=3")
    done = jobs.submit(
        *("folder", "--working-dir", work, *MODULE),
        *("--config", "run.toml", "--run-dir", run_dir, *sets),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert jobs.outcome("folder") == ("SUCCEEDED", 0)
    assert f"uses the Ray at {head.address} (RAY_ADDRESS), where its name is run-" in done.stdout
    assert "step 3/3  loss " in done.stdout
    result = result_of(run_dir)
    assert (result["status"], result["steps"]) == ("ok", 3)
    assert result["versions"]["disagmoe"] == "0.0.1+folder"
    assert list(result["placement"]) == ["A0.0", "F0.0"]

    bad = jobs.submit(
        *("bad", "--working-dir", work, *MODULE, "--config", "run.toml", "--run-dir", "runs/bad"),
        *("--set", "train.stesp=3"),
    )
    assert bad.returncode == 1
    assert jobs.outcome("bad") == ("FAILED", 2)
    assert "train.stesp" in jobs.logs("bad")


def test_an_installed_wheel_runs_and_a_stop_leaves_a_result(
    head: RayNodes, small_config: Path, tmp_path: Path, launch: Callable[..., Launched]
) -> None:
    site = installed_wheel("0.0.2", tmp_path)
    work = tmp_path / "work"  # with the config alone
    work.mkdir()
    shutil.copy(small_config, work / "run.toml")
    jobs, run_dir = Jobs(head), tmp_path / "run"
    runtime = {"env_vars": {"PYTHONPATH": str(site), "RAY_JOB_STOP_WAIT_TIME_S": "60"}}
    sets = (*SETS, "--set", "train.steps=100000")
    jobs_options = ("--address", head.jobs_address, "--submission-id", "wheel")
    submitted: Launched = launch(
        *(*JOB, "submit", *jobs_options, "--runtime-env-json", json.dumps(runtime)),
        *("--working-dir", work, "--", site / "bin/disagmoe", "train"),
        *("--config", "run.toml", "--run-dir", run_dir, *sets),
    )
    submitted.wait_for("step 1/", stream="stdout")
    stopped = jobs.stop("wheel")
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    assert jobs.outcome("wheel")[0] == "STOPPED"
    assert submitted.finish() == 0
    result = result_of(run_dir)
    assert (result["status"], result["first_error"]) == ("stopped", None)
    assert result["steps"] >= 1
    saved = find(str(run_dir))
    assert (saved.manifest.step, str(saved.place)) == (result["steps"], result["checkpoint"])
    assert result["versions"]["disagmoe"] == "0.0.2"
    assert f"stopped: {result['steps']} steps in " in jobs.logs("wheel")
