"""Runs on a cluster of five nodes and a head: who is where, who waits, what is refused; jobs."""

import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from disagmoe.cluster.bundles import cluster_bundles
from disagmoe.cluster.environment import environment
from disagmoe.cluster.explain import infeasible
from disagmoe.cluster.ground import ground, with_nodes
from disagmoe.cluster.join import Target, choose, joined
from disagmoe.cluster.nearest import nearest_fit
from disagmoe.cluster.nodes import read_holders
from disagmoe.errors import PlacementInfeasible
from tests.ray.conftest import ROOT, Launched
from tests.ray.five_nodes import CPUS, GPUS_OF_FIRST, ROLES, FiveNodes, five_nodes
from tests.ray.jobs import JOB, Jobs, copy_of, installed_wheel
from tests.unit.cluster.infeasible import REQUESTS, the_five

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]

ON_CLUSTER = (
    *("--set", "cluster.mode=cluster", "--set", "cluster.device=cpu"),
    *("--set", "parallel.attention_workers=1", "--set", "parallel.expert_workers=1"),
    *("--set", "parallel.profile=off", "--set", "train.eval.every=0"),
)
MODULE = ("--", sys.executable, "-m", "disagmoe", "train")
LONG = ("--set", "train.steps=100000")


@pytest.fixture(scope="module")
def cluster() -> Iterator[FiveNodes]:
    with five_nodes(ROOT) as started, environment(started.variables):
        yield started


@pytest.fixture
def on_cluster(
    cluster: FiveNodes, train: Callable[..., Launched], tmp_path: Path
) -> Callable[..., Launched]:
    """Start a run of one attention and one expert worker in a directory of the given name."""

    def start(name: str, *arguments: str) -> Launched:
        address = ("--address", cluster.address, "--run-dir", str(tmp_path / name))
        return train(*ON_CLUSTER, *address, *arguments)

    return start


def nodes_of(run: Launched) -> dict[str, str]:
    """Node by worker, as shown while it runs."""
    run.wait_for("step 1/")
    return dict(
        reversed(pair)  # type: ignore[arg-type]
        for pair in re.findall(r"placed on \S+ \(node (\w+)\): (\S+)", run.stderr)
    )


def result_of(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "result.json").read_text())


def test_runs_at_once_have_nodes_of_their_own_and_leave_nothing(
    on_cluster: Callable[..., Launched], tmp_path: Path
) -> None:
    first, second = on_cluster("first", *LONG), on_cluster("second", *LONG)
    places = [nodes_of(first), nodes_of(second)]
    assert [list(place) for place in places] == [["A0.0", "F0.0"]] * 2
    assert len({node for place in places for node in place.values()}) == 4

    refused = on_cluster("refused", "--set", "parallel.expert_workers=3")
    assert refused.finish() == 3, refused.stderr
    refused.expect(r"error: nodes for this run are in use: free are .* of 3 nodes for experts")
    refused.expect(r"held by disagmoe-(first|second)-\w{8} \(CPU 1, expert_node 1\)")
    refused.expect("end what holds them, or wait for them: --set cluster.wait_s=3600")
    assert result_of(tmp_path / "refused")["status"] == "failed"

    orphans = [second.pid_of(worker) for worker in ("A0.0", "F0.0")]
    patient = ("--set", "parallel.expert_workers=3", "--set", "cluster.wait_s=120")
    third = on_cluster("third", *patient, "--set", "train.steps=3")
    third.wait_for(r"waiting for them for at most 120 s \(cluster.wait_s\)")
    os.kill(first.process.pid, signal.SIGTERM)
    os.killpg(second.process.pid, signal.SIGKILL)  # nobody is left to clean up
    assert first.finish() == 143, first.stderr
    assert third.finish() == 0, third.stderr

    assert not any(psutil.pid_exists(pid) for pid in orphans)
    with joined(Target(cluster.address)):
        assert read_holders() == {}

    result = result_of(tmp_path / "third")
    assert (result["status"], result["steps"]) == ("ok", 3)
    placed = result["placement"]
    assert list(placed) == ["A0.0", "F0.0", "F0.1", "F0.2"]
    assert len({place["node"] for place in placed.values()}) == 4
    assert {(place["gpu"], place["device"]) for place in placed.values()} == {(None, "cpu")}


def test_requests_that_cannot_be_placed_are_explained_within_seconds(cluster: FiveNodes) -> None:
    expected = the_five(CPUS, GPUS_OF_FIRST, ROLES)
    for request in REQUESTS:
        began_s = time.monotonic()
        config = request.config
        with joined(choose(config.cluster, {"RAY_ADDRESS": cluster.address})) as target:
            there = with_nodes(target, config)
            with pytest.raises(PlacementInfeasible) as caught, ground(there, target, "x", print):
                pass
        assert time.monotonic() - began_s < 5, request.name
        message = infeasible(cluster_bundles(there), expected, nearest_fit(there, expected))
        assert without_names(str(caught.value)) == without_names(message), request.name


def without_names(message: str) -> list[str]:
    """Lines of `message` in any order, without addresses and ids of nodes."""
    return sorted(re.sub(r"\S+ \(node \w{8}\)", "NODE", message).splitlines())


def test_a_folder_is_enough_and_its_code_runs_on_all_nodes(
    cluster: FiveNodes, small_config: Path, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    shutil.copytree(copy_of("0.0.1+folder", tmp_path) / "disagmoe", work / "disagmoe")
    shutil.copy(small_config, work / "run.toml")
    jobs, run_dir = Jobs(cluster), tmp_path / "run"
    sets = (*ON_CLUSTER, "--set", "train.steps=3")
    done = jobs.submit(
        *("folder", "--working-dir", work, *MODULE),
        *("--config", "run.toml", "--run-dir", run_dir, *sets),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert jobs.outcome("folder") == ("SUCCEEDED", 0)
    assert f"uses the Ray at {cluster.address} (RAY_ADDRESS), where its name is run-" in done.stdout
    assert "step 3/3  loss " in done.stdout
    result = result_of(run_dir)
    assert (result["status"], result["steps"]) == ("ok", 3)
    assert result["versions"]["disagmoe"] == "0.0.1+folder"
    assert len({place["node"] for place in result["placement"].values()}) == 2

    bad = jobs.submit(
        *("bad", "--working-dir", work, *MODULE, "--config", "run.toml", "--run-dir", "runs/bad"),
        *("--set", "train.stesp=3"),
    )
    assert bad.returncode == 1
    assert jobs.outcome("bad") == ("FAILED", 2)
    assert "train.stesp" in jobs.logs("bad")


def test_an_installed_wheel_runs_and_a_stop_leaves_a_result(
    cluster: FiveNodes, small_config: Path, tmp_path: Path, launch: Any
) -> None:
    site = installed_wheel("0.0.2", tmp_path)
    work = tmp_path / "work"  # with the config alone
    work.mkdir()
    shutil.copy(small_config, work / "run.toml")
    jobs, run_dir = Jobs(cluster), tmp_path / "run"
    runtime = {"env_vars": {"PYTHONPATH": str(site), "RAY_JOB_STOP_WAIT_TIME_S": "60"}}
    sets = (*ON_CLUSTER, "--set", "train.steps=100000")
    jobs_options = ("--address", cluster.jobs_address, "--submission-id", "wheel")
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
    assert result["versions"]["disagmoe"] == "0.0.2"
    assert f"stopped: {result['steps']} steps in " in jobs.logs("wheel")
