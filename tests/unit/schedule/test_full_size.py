"""Programs of a run of full size, 94 layers x 64 micro-batches on 128 GPUs, stay light."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from disagmoe.schedule.verify import RULES
from disagmoe.units import GIB, KIB

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 120
LIMIT_BYTES = 4 * GIB


@pytest.mark.slow
def test_a_run_of_full_size_verifies_in_two_minutes_and_4_gib() -> None:
    config = "configs/runs/qwen3-235b-h800x16.toml"
    start = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", "disagmoe", "schedule", "verify", "--config", config],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        printed = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    assert printed.split() == [word for rule in RULES for word in ("ok", rule.__name__)]
    assert time.monotonic() - start < LIMIT_S
    assert usage.ru_maxrss * KIB < LIMIT_BYTES
