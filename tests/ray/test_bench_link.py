"""`disagmoe bench link` on real workers, which need neither data nor a shared folder."""

import json
import subprocess
import sys
from typing import Any

import pytest
import ray

from disagmoe.bench.link import answers
from disagmoe.cluster.local import local_ray
from disagmoe.errors import TransportError, WorkerError
from tests.ray.conftest import ROOT, in_checkout

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def test_edges_of_a_placed_run() -> None:
    command = ["bench", "link", "--config", str(ROOT / "configs" / "tiny.toml"), "--mib", "1"]
    command += ["--json", "--set", "hardware.attention_machine=cpu"]
    done = subprocess.run(
        [sys.executable, "-m", "disagmoe", *command],
        env=in_checkout(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(done.stdout)
    assert seen["transport"] == "gloo"
    assert [(e["channel"], e["source"], e["target"]) for e in seen["edges"]] == [
        ("A0>F0.act", "A0.0", "F0.0"),
        ("F0>A0.act", "F0.0", "A0.0"),
        ("A0>F0.grad", "A0.0", "F0.0"),
        ("F0>A0.grad", "F0.0", "A0.0"),
    ]
    assert all(edge["near"] and edge["bytes_per_s"] > 0 for edge in seen["edges"])
    assert seen["edges"][0]["assumed_bytes_per_s"] == pytest.approx(6e9)


def _fails() -> None:
    raise TransportError("channel A0>F0.act: A0.0 has died")


def test_a_worker_that_fails_or_is_late_is_named() -> None:
    failing: Any = ray.remote(num_cpus=0)(_fails)
    with local_ray(1, 1):
        with pytest.raises(WorkerError, match=r"^F0\.0 failed in the warm-up: channel A0>F0"):
            answers({"F0.0": failing.remote()}, 60.0, "warm-up")
        with pytest.raises(WorkerError, match=r"^A0\.0 did not finish the warm-up within 0 s$"):
            answers({"A0.0": failing.remote()}, 0.0, "warm-up")
