"""What a user asks of a cluster's job server, and packages to submit."""

import shutil
import subprocess
import sys
from pathlib import Path

from ray.job_submission import JobSubmissionClient

from tests.house.test_wheel import NOT_SOURCE, build
from tests.ray.conftest import ROOT
from tests.ray.nodes import RayNodes

JOB = ("-m", "ray.scripts.scripts", "job")  # `ray job`, of this interpreter


class Jobs:
    """What a user asks of the job server."""

    def __init__(self, cluster: RayNodes) -> None:
        self._address = ("--address", cluster.jobs_address)
        self._client = JobSubmissionClient(cluster.jobs_address)

    def submit(self, name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """`ray job submit`, until the job has ended."""
        return self._call("submit", *self._address, "--submission-id", name, *arguments)

    def logs(self, name: str) -> str:
        """What its script has printed."""
        return self._client.get_job_logs(name)

    def outcome(self, name: str) -> tuple[str, int | None]:
        """Its status, and the exit code of its script if it has one."""
        info = self._client.get_job_info(name)
        return str(info.status), info.driver_exit_code

    def stop(self, name: str) -> subprocess.CompletedProcess[str]:
        """`ray job stop`."""
        return self._call("stop", *self._address, name)

    def _call(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *JOB, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=150)


def copy_of(version: str, folder: Path) -> Path:
    """A checkout that says it is of another version, so that a run shows whose code it has."""
    copy = folder / "checkout"
    shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(*NOT_SOURCE, "tests"))
    (copy / "disagmoe/__init__.py").write_text(f'"""A copy."""\n\n__version__ = "{version}"\n')
    return copy


def installed_wheel(version: str, folder: Path) -> Path:
    """Build a wheel that says it is of `version` and install it; return where it is."""
    wheel, site = build(copy_of(version, folder), "wheel", folder / "dist"), folder / "site"
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", site]
    subprocess.run([sys.executable, *install, wheel], check=True, timeout=100)
    return site
