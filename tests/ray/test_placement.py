"""Runs on a cluster of five nodes and a head: who is where, who waits, what is refused."""

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from disagmoe.cluster.bundles import Bundle, cluster_bundles
from disagmoe.cluster.environment import environment
from disagmoe.cluster.explain import infeasible
from disagmoe.cluster.ground import ground, with_nodes
from disagmoe.cluster.join import Target, choose, joined
from disagmoe.cluster.nearest import nearest_fit
from disagmoe.cluster.nodes import read_holders, read_nodes
from disagmoe.cluster.placement import placed
from disagmoe.errors import PlacementInfeasible
from disagmoe.schedule.layout import Side
from tests.ray.conftest import ROOT, Launched
from tests.ray.nodes import CPUS, GPUS_OF_FIRST, ROLES, RayNodes, ray_nodes
from tests.unit.cluster.infeasible import REQUESTS, the_five

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]

ON_CLUSTER = (
    *("--set", "cluster.mode=cluster", "--set", "cluster.device=cpu"),
    *("--set", "parallel.attention_workers=1", "--set", "parallel.expert_workers=1"),
    *("--set", "parallel.profile=off", "--set", "train.eval.every=0"),
)
LONG = ("--set", "train.steps=100000")


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayNodes]:
    with ray_nodes(ROOT) as started, environment(started.variables):
        yield started


@pytest.fixture
def on_cluster(
    cluster: RayNodes, train: Callable[..., Launched], tmp_path: Path
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


def driver_of(run_dir: Path) -> psutil.Process:
    """The process of the driver actor: it writes the driver's log."""
    log = str(run_dir / "logs/driver.log")
    (found,) = (
        process
        for process in psutil.process_iter()
        if process.name().startswith("ray::")
        and log in (file.path for file in process.open_files())
    )
    return found


def result_of(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "result.json").read_text())


def test_runs_at_once_have_nodes_of_their_own_and_leave_nothing(
    cluster: RayNodes, on_cluster: Callable[..., Launched], tmp_path: Path
) -> None:
    once = ("--set", "recovery.max_failures=0")
    first, second = on_cluster("first", *LONG, *once), on_cluster("second", *LONG)
    places = [nodes_of(first), nodes_of(second)]
    assert [list(place) for place in places] == [["A0.0", "F0.0"]] * 2
    assert len({node for place in places for node in place.values()}) == 4

    refused = on_cluster("refused", "--set", "parallel.expert_workers=3")
    assert refused.finish() == 3, refused.stderr
    refused.expect(r"error: nodes for this run are in use: free are .* of 3 nodes for experts")
    refused.expect(r"held by disagmoe-(first|second)-\w{8} \(CPU 1, expert_node 1\)")
    refused.expect("end what holds them, or wait for them: --set cluster.wait_s=3600")
    assert result_of(tmp_path / "refused")["status"] == "failed"

    orphans = [run.pid_of(worker) for run in (first, second) for worker in ("A0.0", "F0.0")]
    patient = ("--set", "parallel.expert_workers=3", "--set", "cluster.wait_s=120")
    third = on_cluster("third", *patient, "--set", "train.steps=3")
    third.wait_for(r"waiting for nodes for at most 120 s \(cluster.wait_s\)")
    driver_of(tmp_path / "first").kill()
    os.killpg(second.process.pid, signal.SIGKILL)  # nobody is left to clean up
    assert first.finish() == 1
    first.expect("error: the driver has died: ")
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


def test_requests_that_cannot_be_placed_are_explained_within_seconds(cluster: RayNodes) -> None:
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


def pools_of(cluster: RayNodes) -> dict[str, str]:
    """The pool of each node that has one, by id, as its labels in Ray say."""
    with joined(Target(cluster.address)):
        return {node.id: node.labels["pool"] for node in read_nodes() if "pool" in node.labels}


def test_labels_choose_nodes_whatever_these_offer(
    cluster: RayNodes, on_cluster: Callable[..., Launched], tmp_path: Path
) -> None:
    """Attention goes to nodes whose resource is for experts, and the other way round."""
    labels = ("cluster.attention.label=pool=a", "cluster.expert.label=pool=b")
    by_label = [word for one in labels for word in ("--set", one)]
    run = on_cluster("labels", *by_label, "--set", "train.steps=2")
    refused = on_cluster("no labels", *by_label, "--set", "parallel.expert_workers=2")
    assert run.finish() == 0, run.stderr
    pools, seats = pools_of(cluster), result_of(tmp_path / "labels")["placement"]
    assert {name: pools[seat["node"]] for name, seat in seats.items()} == {"A0.0": "a", "F0.0": "b"}
    assert refused.finish() == 3, refused.stderr
    refused.expect("it has 1 of 1 nodes for attention and 1 of 2 nodes for experts")
    refused.expect(r"2 x label pool=b, CPU 1 \(F0\.0; F0\.1\)")
    refused.expect("ray start --address HEAD:6379 --labels pool=b")


def test_a_bad_node_is_left_out_among_those_of_a_label(cluster: RayNodes) -> None:
    pool = {node for node, name in pools_of(cluster).items() if name == "a"}
    asked = [Bundle(side=Side.ATTENTION, workers=("A0.0",), cpus=1.0, label="pool=a")]
    with joined(Target(cluster.address)), placed(asked, "disagmoe-bad") as own:
        bad = own.places["A0.0"].node
        other = own.renew(frozenset({bad}))["A0.0"].node
        assert {bad, other} == pool
        # nobody else is in this pool: a bad node is better than none
        assert own.renew(frozenset(pool))["A0.0"].node in pool
    assert len(pool) == 2


def test_the_doctor_looks_at_the_nodes_and_whether_a_run_fits(
    cluster: RayNodes, launch: Callable[..., Launched], small_config: Path
) -> None:
    doctor = launch(
        *("-m", "disagmoe", "doctor", "--json", "--address", cluster.address),
        *("--config", small_config, *ON_CLUSTER),
    )
    assert doctor.finish() == 0, doctor.stdout + doctor.stderr
    report = json.loads(doctor.stdout)
    found = {finding["subject"]: finding["found"] for finding in report["findings"]}
    assert report["ok"]
    assert found["Ray to use"] == f"the Ray at {cluster.address} (cluster.address)"
    assert found["nodes"] == "6 nodes: 3 for attention, 3 for experts, 1 for neither"
    assert sum(subject.startswith("node ") for subject in found) == 6
    assert found["auth token"] == "from RAY_AUTH_TOKEN; mode token"
    assert found["this run"] == "fits, on 2 nodes"
