"""`disagmoe bench compute` for real, on a model of no size."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.ray, pytest.mark.hf, pytest.mark.slow]

TINY = """
name = "bench-tiny"
[model]
family = "qwen3_moe"
vocab_size = 300
hidden = 32
layers = 2
heads = 4
kv_heads = 2
head_dim = 8
experts = 4
top_k = 2
expert_width = 16
[parallel]
micro_batch_size = 2
[train]
steps = 1000
global_batch_size = 8
sequence_length = 32
precision = "fp32"
[cluster]
device = "cpu"
threads_per_worker = 1
[data]
paths = ["replaced by the bench"]
"""


@pytest.mark.timeout(300)
def test_all_sides_train_the_same_model(tmp_path: Path) -> None:
    config = tmp_path / "compute.toml"
    config.write_text(TINY)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "disagmoe", "bench", "compute", "--config", str(config)),
            *("--quick", "--rounds", "2", "--json"),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["valid"] is True
    assert figures["rounds"] == 2
    sides = figures["sides"]
    assert list(sides) == ["grouped_mm", "eager", "batched_mm", "reference", "run"]
    for name in ("reference", "run", figures["transformers_experts"]):
        assert len(sides[name]["steps_s"]) == 2
    for key, name in (
        ("transformers_tokens_per_s", figures["transformers_experts"]),
        ("reference_tokens_per_s", "reference"),
        ("run_tokens_per_s", "run"),
    ):
        assert figures[key] == sides[name]["tokens_per_s"] > 0
    ours = sides["run"]["losses"]
    trained = {name: side["losses"] for name, side in sides.items() if side.get("losses")}
    assert set(trained) >= {"grouped_mm", "eager", "reference", "run"}
    for losses in trained.values():
        assert losses[: len(ours)] == pytest.approx(ours[: len(losses)], rel=1e-4)
    assert set(sides["run"]["shares"]) == {"A0.0", "F0.0"}
