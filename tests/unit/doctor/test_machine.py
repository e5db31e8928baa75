"""Shared memory and limits of a machine; its ports are tried for real elsewhere."""

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from disagmoe.doctor.finding import Finding
from disagmoe.doctor.machine import open_files_finding, shared_memory_finding
from disagmoe.units import MIB

Usage = namedtuple("Usage", "total used free")


def test_little_shared_memory_is_a_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(64 * MIB, 0, 64 * MIB))
    assert shared_memory_finding(tmp_path) == Finding(
        subject="shared memory",
        level="problem",
        found=f"64.0 MiB free in {tmp_path}, and Ray needs 80.0 MiB",
        advice="give a container more (docker run --shm-size=8g; a memory-backed emptyDir at "
        f"{tmp_path} on Kubernetes), or remove what is left there",
    )
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1, 0, 100 * MIB))
    assert shared_memory_finding(tmp_path).found == f"100.0 MiB free in {tmp_path}"


def test_few_open_files_are_noted() -> None:
    assert open_files_finding(1024) == Finding(
        subject="open files",
        level="note",
        found="at most 1024 per process",
        advice="`ulimit -n 65536` before `ray start`; large runs need a socket per peer",
    )
    assert open_files_finding(65536).level == open_files_finding(-1).level == "ok"
