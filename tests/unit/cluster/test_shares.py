"""Threads and GPUs of each worker."""

from pathlib import Path

import pytest

from disagmoe.cluster.shares import cores, gpus_per_worker, threads_per_worker, worker_count
from disagmoe.config.load import override
from disagmoe.config.run import RunConfig

ROOT = Path(__file__).resolve().parents[3]
SETS = ["parallel.groups=2", "parallel.attention_workers=1", "parallel.expert_workers=2"]


@pytest.mark.parametrize(
    ("configured", "cores", "threads"), [(0, 12, 2), (0, 13, 2), (0, 2, 1), (5, 2, 5)]
)
def test_cores_are_divided_among_the_workers_unless_told(
    configured: int, cores: int, threads: int
) -> None:
    sets = [*SETS, f"cluster.threads_per_worker={configured}"]
    config = override(RunConfig.load(ROOT / "configs/tiny.toml"), sets)
    assert worker_count(config) == 6
    assert threads_per_worker(config, cores) == threads


def test_this_machine_has_a_core() -> None:
    assert cores() >= 1


@pytest.mark.parametrize(
    ("device", "gpus", "share"),
    [("cpu", 8, 0.0), ("cuda", 8, 1.0), ("cuda", 6, 1.0), ("cuda", 5, 0.5), ("cuda", 1, 1 / 6)],
)
def test_workers_share_gpus_where_there_are_more_of_them(
    device: str, gpus: int, share: float
) -> None:
    sets = [*SETS, f'cluster.device="{device}"']
    config = override(RunConfig.load(ROOT / "configs/tiny.toml"), sets)
    assert gpus_per_worker(config, gpus) == share
