"""Runs that end before their time: killed and frozen workers, Ctrl-C, SIGTERM."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from disagmoe.api import Result
from disagmoe.checkpoint.find import find

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]

LONG = ("--set", "train.steps=100000", "--set", "train.eval.every=0")


def test_a_killed_worker_ends_the_run_and_is_named(
    train: Callable, leftovers: Callable, tmp_path: Path
) -> None:
    run = train(*LONG, "--run-dir", tmp_path / "run")
    pid = run.pid_of("F0.1")
    run.wait_for("step 1/")
    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    assert run.finish() == 1
    assert time.monotonic() - began < 30
    assert leftovers() == []
    result = Result.load(tmp_path / "run")
    assert result.status == "failed"
    assert result.steps >= 1
    assert result.first_error is not None
    assert result.first_error.startswith("F0.1 died: its process is gone (")
    assert "after that:\n" in result.first_error
    assert "error: F0.1 died: its process is gone (" in run.stderr
    assert "F0.1 has closed the connection" in (tmp_path / "run/logs/driver.log").read_text()


def test_a_frozen_worker_ends_the_run_at_the_deadline(
    train: Callable, leftovers: Callable, tmp_path: Path
) -> None:
    run = train(*LONG, "--set", "cluster.step_timeout_s=4", "--run-dir", tmp_path / "run")
    pid = run.pid_of("F0.0")
    run.wait_for("step 1/")
    os.kill(pid, signal.SIGSTOP)
    assert run.finish() == 1
    assert leftovers() == []
    error = Result.load(tmp_path / "run").first_error
    assert error is not None
    assert error.startswith("F0.0 answers nothing, and its death is not reported")


def test_ctrl_c_ends_the_run_after_the_step(
    train: Callable, leftovers: Callable, tmp_path: Path
) -> None:
    run = train(*LONG, "--run-dir", tmp_path / "run", "--json")
    run.wait_for("step 1/")
    run.interrupt()
    assert run.finish() == 130, run.stderr
    assert leftovers() == []
    result = Result.load(tmp_path / "run")
    assert (result.status, result.first_error) == ("stopped", None)
    assert run.stdout == result.to_json() + "\n"
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert len(lines) == result.steps
    assert '"stopped": true' in lines[-1]
    saved = find(str(tmp_path / "run"))
    assert (saved.manifest.step, str(saved.place)) == (result.steps, result.checkpoint)
    run.expect(rf"to go on: disagmoe train --resume {tmp_path}/run\n")


def test_sigterm_ends_the_run_while_it_starts(
    train: Callable, leftovers: Callable, tmp_path: Path
) -> None:
    run = train(*LONG, "--run-dir", tmp_path / "run")
    run.wait_for("run small: ")
    os.kill(run.process.pid, signal.SIGTERM)
    assert run.finish() == 143, run.stderr
    assert leftovers() == []
    result = Result.load(tmp_path / "run")
    assert (result.status, result.steps) == ("stopped", 0)


def test_sigterm_to_all_processes_ends_the_run(
    train: Callable, leftovers: Callable, tmp_path: Path
) -> None:
    run = train(*LONG, "--run-dir", tmp_path / "run")
    run.wait_for("step 1/")
    os.killpg(run.process.pid, signal.SIGTERM)
    assert run.finish() == 143, run.stderr
    assert leftovers() == []
    result = Result.load(tmp_path / "run")
    assert (result.status, result.first_error) == ("stopped", None)
    assert result.steps >= 1
