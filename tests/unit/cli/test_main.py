"""Exit codes, and what a person sees who makes a mistake on the command line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from disagmoe import __version__
from disagmoe.cli.main import app, exit_code
from disagmoe.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DisagMoEError,
    PlacementError,
    ScheduleError,
    StorageError,
    TransportError,
    WorkerError,
)

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (DataError("x"), 2),
        (PlacementError("x"), 3),
        (ScheduleError("x"), 1),
        (TransportError("x"), 1),
        (CheckpointError("x"), 2),
        (StorageError("x"), 2),
        (WorkerError("x"), 1),
        (DisagMoEError("x"), 1),
    ],
)
def test_exit_codes(error: DisagMoEError, code: int) -> None:
    assert exit_code(error) == code


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_nccl_without_a_device_is_refused_before_anything_starts(tmp_path: Path) -> None:
    config = str(ROOT / "configs" / "tiny.toml")
    run_dir = tmp_path / "run"
    command = ["train", "--config", config, "--set", "cluster.transport=nccl"]
    done = subprocess.run(
        [sys.executable, "-m", "disagmoe", *command, "--run-dir", str(run_dir)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(
        'error: cluster.transport = "nccl" moves tensors between CUDA devices, and '
    )
    assert not run_dir.exists()


def test_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"disagmoe {__version__}\n")


@pytest.mark.parametrize("arguments", [["--no-such-option"], ["no-such-command"], ["config", "zq"]])
def test_bad_usage(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "No such" in result.output
    assert "Traceback" not in result.output
