"""Quotas as files of a cgroup, in both versions."""

from pathlib import Path

import pytest

from disagmoe.bench.quota import cpu_group
from disagmoe.errors import PlacementError


def test_version_1_has_a_quota_and_a_period(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    with cpu_group("host", tmp_path) as group:
        folder = tmp_path / "cpu" / "host"
        group.limit(0.5)
        assert (folder / "cpu.cfs_period_us").read_text() == "20000"
        assert (folder / "cpu.cfs_quota_us").read_text() == "10000"
        group.limit(None)
        assert (folder / "cpu.cfs_quota_us").read_text() == "-1"
        assert group.join == f"echo $$ > {folder}/cgroup.procs"
        group.add(12)
        assert (folder / "cgroup.procs").read_text() == "12"
        (folder / "cgroup.procs").unlink()


def test_version_2_has_both_in_one_file(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory")
    (tmp_path / "cgroup.subtree_control").write_text("memory")
    with cpu_group("host", tmp_path) as group:
        group.limit(0.25)
        assert (tmp_path / "host" / "cpu.max").read_text() == "5000 20000"
        group.limit(None)
        assert (tmp_path / "host" / "cpu.max").read_text() == "max 20000"
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu"


def test_an_empty_group_is_removed(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    with cpu_group("host", tmp_path):
        assert (tmp_path / "cpu" / "host").is_dir()
    assert not (tmp_path / "cpu" / "host").exists()


def test_groups_of_a_killed_bench_are_removed(tmp_path: Path) -> None:
    gone = tmp_path / "cpu" / f"dm{2**22 + 1}-0"  # above the largest pid_max of Linux
    gone.mkdir(parents=True)
    with cpu_group("host", tmp_path):
        assert not gone.exists()


def test_a_machine_without_cpu_cgroups_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(PlacementError, match="this machine has no CPU cgroups"),
        cpu_group("host", tmp_path),
    ):
        pass


def test_a_limit_that_the_kernel_refuses_is_reported(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    with cpu_group("host", tmp_path) as group:
        (tmp_path / "cpu" / "host").rmdir()
        with pytest.raises(PlacementError, match=r"cannot write '20000' to .*cpu\.cfs_period_us"):
            group.limit(0.5)
