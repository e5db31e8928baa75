"""Every expression of every panel and rule, on a real Prometheus that scrapes a real run.

The second test does it on a slow network: all processes in a network namespace whose loopback
carries 24 Mbit/s, so that workers wait for transfers.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.prometheus, pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(400)]
ROOT = Path(__file__).resolve().parents[2]
CHECK = [sys.executable, "-m", "disagmoe", "dashboards", "check", "--live", "--json"]


def check(*before: str, pictures: Path) -> None:
    done = subprocess.run(
        [*before, *CHECK, "--pictures", str(pictures)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=380,
    )
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts.pop("expressions") > 70
    assert counts == {"empty": 0, "errors": 0}
    assert sorted(path.name for path in pictures.iterdir()) == [
        "disagmoe-experts.png",
        "disagmoe-faults.png",
        "disagmoe-overview.png",
        "disagmoe-stages.png",
    ]
    assert all(path.stat().st_size > 10_000 for path in pictures.iterdir())


def test_every_expression_has_a_value_and_the_right_one(tmp_path: Path) -> None:
    check(pictures=tmp_path)


@pytest.mark.net
def test_shares_are_those_of_the_trace_on_a_slow_link(tmp_path: Path) -> None:
    slow = "ip link set lo up && tc qdisc add dev lo root tbf rate 24mbit burst 128kb latency 400ms"
    check("unshare", "--net", "sh", "-c", f'{slow} && exec "$@"', "sh", pictures=tmp_path)
