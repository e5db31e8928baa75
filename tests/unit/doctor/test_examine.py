"""Checks that look for a Ray: what is said where none is, or none can be joined."""

from pathlib import Path

import pytest

from disagmoe.config.load import load_run_config
from disagmoe.doctor import examine
from disagmoe.doctor.finding import Finding

ROOT = Path(__file__).resolve().parents[3]


def about_ray(*sets: str) -> Finding:
    config = load_run_config(ROOT / "configs/tiny.toml", sets)
    *_, last = examine.examine(config.cluster, config, gpu=False)
    return last


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(
        examine, "port_finding", lambda host: Finding(subject="", level="ok", found=host)
    )


@pytest.mark.parametrize("gpu", [False, True])
def test_the_gpu_path_is_looked_at_when_it_is_asked_for(gpu: bool) -> None:
    config = load_run_config(ROOT / "configs/tiny.toml", ())
    subjects = [found.subject for found in examine.examine(config.cluster, config, gpu=gpu)]
    assert {"cupy", "RDMA", "locked memory"}.isdisjoint(subjects) is not gpu


def test_no_ray_is_named() -> None:
    finding = about_ray()
    assert finding.level == "ok"
    assert finding.found == "none is named: a run starts a private one on this machine"


def test_a_run_for_a_cluster_names_none() -> None:
    finding = about_ray("cluster.mode=cluster")
    assert finding.level == "problem"
    assert finding.found.startswith('cluster.mode = "cluster" joins a Ray cluster and never starts')


def test_a_ray_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    finding = about_ray()
    assert finding.level == "problem"
    assert finding.found.startswith("RAY_ADDRESS = ray://head:10001 is an address for `ray job")
