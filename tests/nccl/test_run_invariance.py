"""Training over NCCL's transport in processes; the whole list is for the script itself."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nccl import run_invariance


@pytest.mark.gloo
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_training_over_the_stand_in_equals_one_process() -> None:
    script = str(Path(run_invariance.__file__))
    uneven = next(x for x in run_invariance.cases() if x.dedupe == "node" and x.experts == 3)
    two_hops = str(run_invariance.cases().index(uneven))
    done = subprocess.run(
        [sys.executable, script, "--json", "--only", "0", "--only", "1", "--only", two_hops],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(done.stdout)
    assert {key: seen[key] for key in ("ok", "layouts", "violations", "library")} == {
        "ok": True,
        "layouts": 6,  # each on inproc and over NCCL
        "violations": [],
        "library": "stand-in",
    }


def test_the_list_covers_sizes_and_schedules() -> None:
    listed = run_invariance.cases()
    assert {case.schedule for case in listed} == {"af_pipe", "serial", "ep_1f1b", "ep_overlap"}
    assert {case.attention for case in listed} == {1, 2, 3, 4}
    assert {case.experts for case in listed} == {1, 2, 3, 4}
    assert {case.dedupe for case in listed} == {"none", "rank", "node"}
    assert {case.groups for case in listed} == {1, 2}
