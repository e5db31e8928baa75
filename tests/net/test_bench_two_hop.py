"""The whole of `bench two-hop` on a small model: real hosts, a slow link, exact bytes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SMALL = """
name = "bench-small"
[model]
family = "qwen3_moe"
vocab_size = 257
hidden = 256
layers = 2
heads = 4
kv_heads = 2
head_dim = 32
experts = 8
top_k = 2
expert_width = 64
forced_balance = true
[parallel]
expert_workers = 2
micro_batch_size = 1
profile = "off"
[train]
steps = 1000
global_batch_size = 4
sequence_length = 256
precision = "bf16"
[cluster]
device = "cpu"
threads_per_worker = 1
[data]
paths = ["replaced by the bench"]
"""


@pytest.mark.net
@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_row_per_host_takes_as_many_bytes_as_routing_asks_for(tmp_path: Path) -> None:
    config = tmp_path / "small.toml"
    config.write_text(SMALL)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "disagmoe", "bench", "two-hop", "--quick", "--rounds", "2"),
            *("--config", str(config), "--json"),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=220,
    )
    assert done.stdout, done.stderr
    figures = json.loads(done.stdout)
    # with steps this short Ray's own messages count, and so does every pause
    assert figures["bytes_ratio"] == pytest.approx(figures["bytes_ratio_exact"], rel=0.1)
    assert figures["rows_ratio"] == pytest.approx(1 / 1.571, rel=0.03)
    assert figures["rows_ratio_uniform"] == pytest.approx(1 / 1.571, abs=1e-3)
    assert figures["speedup"] > 0
    held = {name.partition(": ")[2] for name, holds in figures["checks"].items() if holds}
    assert held >= {
        "workers pinned to their host's core",
        "same losses",
        "rows sent are those that routing asks for",
        "payloads are as large as routing asks for",
    }
    assert done.returncode in (0, 1), done.stderr
