"""Runs in which something goes wrong: killed and frozen workers, Ctrl-C, SIGTERM."""

import json
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
ONCE = ("--set", "recovery.max_failures=0")


def test_a_killed_worker_ends_the_run_and_is_named(
    train: Callable, leftovers: Callable, tmp_path: Path
) -> None:
    run = train(*LONG, *ONCE, "--run-dir", tmp_path / "run")
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


def test_a_frozen_worker_is_noticed_and_its_run_goes_on(
    train: Callable, launch: Callable, leftovers: Callable, tmp_path: Path
) -> None:
    """And a run under way can be asked, and stopped, from another shell."""
    folder = tmp_path / "run"
    sets = ("cluster.heartbeat_timeout_s=5", "checkpoint.interval_steps=5")
    run = train(*LONG, *(w for one in sets for w in ("--set", one)), "--run-dir", folder)
    pid = run.pid_of("F0.0")
    run.wait_for("step 1/")
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    run.wait_for(r"F0\.0 has answered nothing for 5 s \(cluster\.heartbeat_timeout_s\)")
    assert time.monotonic() - began < 30
    run.wait_for(r"F0\.0 does not answer: dead, suspended, or stuck in native code")
    run.wait_for(r"workers are started again from ")
    run.wait_for(r"(?s)started again from.*workers started ")
    asked = launch("-m", "disagmoe", "status", folder, "--json")
    assert asked.finish() == 0, asked.stderr
    told = json.loads(asked.stdout)
    assert (told["status"], told["epoch"]) == ("running", 1)
    assert [w["worker"] for w in told["workers"]] == ["A0.0", "A0.1", "F0.0", "F0.1"]
    assert all(w["progress"] for w in told["workers"])
    stopped = launch("-m", "disagmoe", "stop", folder, "--json")
    assert stopped.finish() == 0, stopped.stderr
    assert run.finish() == 143, run.stderr
    assert leftovers() == []
    result = Result.load(folder)
    assert stopped.stdout == result.to_json() + "\n"
    assert (result.status, result.restarts) == ("stopped", {"silent": 1})
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(result.steps))
    assert lines[-1]["restarts"] == 1
    assert not (folder / "contact.json").exists()


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
