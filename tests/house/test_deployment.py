"""Files for clusters: the run they hold fits the nodes they ask for, and outlives nothing."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from disagmoe.api.grace import short_grace
from disagmoe.cli.main import app
from disagmoe.cluster.bundles import cluster_bundles, filled
from disagmoe.cluster.matching import all_placed, in_total
from disagmoe.cluster.nodes import ACCELERATOR, Node
from disagmoe.config.run import RunConfig

ROOT = Path(__file__).resolve().parents[2]
IN_IMAGE = "/opt/disagmoe"
SHARED = "/mnt/shared"


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    spec = yaml.safe_load((ROOT / "configs/ray/rayjob.yaml").read_text(encoding="utf-8"))
    assert (spec["apiVersion"], spec["kind"]) == ("ray.io/v1", "RayJob")
    return spec["spec"]


@pytest.fixture(scope="module")
def config() -> RunConfig:
    return RunConfig.load(ROOT / "configs/ray/cluster.toml")


def pods(job: dict[str, Any]) -> list[dict[str, Any]]:
    cluster = job["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [group["template"]["spec"] for group in groups]


def nodes_of(job: dict[str, Any], accelerator: str) -> list[Node]:
    """The nodes that the job's worker groups become in Ray."""
    found = []
    for group in job["rayClusterSpec"]["workerGroupSpecs"]:
        (container,) = group["template"]["spec"]["containers"]
        limits = container["resources"]["limits"]
        total = json.loads(json.loads(group["rayStartParams"]["resources"])) | {
            "CPU": float(limits["cpu"]),
            "GPU": float(limits["nvidia.com/gpu"]),
            f"{ACCELERATOR}{accelerator}": 1.0,
        }
        assert group["replicas"] == group["minReplicas"] == group["maxReplicas"]
        for index in range(group["replicas"]):
            name = f"{group['groupName']}-{index}"
            found.append(Node(id=name, host=name, total=total, free=total))
    return found


def test_the_nodes_of_the_job_are_those_that_its_run_needs(
    job: dict[str, Any], config: RunConfig
) -> None:
    nodes = nodes_of(job, config.cluster.attention.accelerator)
    asked = cluster_bundles(filled(config, nodes))
    assert all_placed(asked, nodes, in_total)
    assert len(asked) == len(nodes)
    assert sum(bundle.gpus for bundle in asked) == sum(node.gpus for node in nodes)
    assert job["rayClusterSpec"]["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


def test_the_entrypoint_is_a_command_of_this_version(
    job: dict[str, Any], config: RunConfig
) -> None:
    program, command, *arguments = shlex.split(job["entrypoint"])
    assert (program, command) == ("disagmoe", "train")
    train = typer.main.get_command(app).commands["train"]  # type: ignore[attr-defined]
    known = {flag for option in train.params for flag in option.opts}
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert given.keys() <= known
    assert RunConfig.load(ROOT / given["--config"].removeprefix(f"{IN_IMAGE}/")) == config
    for path in (given["--run-dir"], *config.data.paths):
        assert path.startswith(f"{SHARED}/")
    assert given["--resume"] == "auto"


def test_a_stop_has_time_and_files_are_shared(job: dict[str, Any], config: RunConfig) -> None:
    environment = yaml.safe_load(job["runtimeEnvYAML"])["env_vars"]
    as_job = {**environment, "RAY_JOB_CONFIG_JSON_ENV_VAR": "{}"}
    assert short_grace(as_job, config.cluster.stop_grace_s) is None
    for pod in pods(job):
        assert pod["terminationGracePeriodSeconds"] > int(environment["RAY_JOB_STOP_WAIT_TIME_S"])
        (container,) = pod["containers"]
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert "persistentVolumeClaim" in volumes[mounts[SHARED]]
        assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"


def test_workers_have_rdma_and_all_nodes_one_image(job: dict[str, Any]) -> None:
    head, *workers = pods(job)
    images = {pod["containers"][0]["image"] for pod in (head, *workers)}
    assert len(images) == 1
    for pod in workers:
        (container,) = pod["containers"]
        assert any(name.startswith("rdma/") for name in container["resources"]["limits"])
        assert container["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]


def test_versions_agree(job: dict[str, Any]) -> None:
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert f"\nray=={job['rayClusterSpec']['rayVersion']}\n" in lock


def test_the_image_is_made_of_what_is_there() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert re.findall(r"^WORKDIR (.+)$", text, re.MULTILINE) == [IN_IMAGE]
    copied = re.findall(r"^COPY (\S+) \S+$", text, re.MULTILINE)
    assert copied == ["requirements.lock", "."]
    assert all((ROOT / name).exists() for name in copied)
    assert "hatchling==" in (ROOT / "requirements.lock").read_text(encoding="utf-8")
    left_out = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert {".git", ".venv", "runs"} <= set(left_out)
    assert "README.md" not in left_out  # the wheel is not built without it
