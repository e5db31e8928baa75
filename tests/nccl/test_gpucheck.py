"""What `make test-gpu` does with a GPU, over the stand-in."""

import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from disagmoe.bench.gpucheck import parity, problems, with_peers
from disagmoe.bench.gpujobs import Job, run_jobs
from disagmoe.bench.gpuoverlap import MeasureOverlap
from disagmoe.config.load import load_run_config
from disagmoe.config.resolve import resolve
from tests.nccl.rig import Standin
from tests.nccl.run_invariance import CONFIG
from tests.nccl.server import StandinServer

pytestmark = [pytest.mark.gloo, pytest.mark.slow, pytest.mark.timeout(300)]

TRACED = ["train.steps=3", "trace.first_step=1", "trace.steps=1", "parallel.profile=off"]


@pytest.fixture
def server() -> Iterator[StandinServer]:
    with closing(StandinServer()) as server:
        yield server


def first_is_last(job: Job) -> float:
    time.sleep(1.0 if str(job.worker) == "A0.0" else 0.0)
    return time.monotonic()


def test_answers_are_in_the_order_of_the_workers(server: StandinServer) -> None:
    config = resolve(load_run_config(CONFIG, TRACED), cuda=False)
    answered_s = run_jobs(first_is_last, Standin(server.address), config, ["cpu"])
    assert answered_s["F0.0"] < answered_s["A0.0"]
    assert list(answered_s) == ["A0.0", "F0.0"]


def test_all_parts_are_found(server: StandinServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    config = resolve(load_run_config(CONFIG, TRACED), cuda=False)
    small = MeasureOverlap(nbytes=4096, width=64)
    seen = dict(with_peers(Standin(server.address), ["cpu"], config, small))
    assert set(seen["channels"]) == {"A0>F0.act", "F0>A0.act", "A0>F0.grad", "F0>A0.grad"}
    assert all(channel["bytes_per_s"] > 0 for channel in seen["channels"].values())
    assert seen["overlap"]["host_waits"] == ""
    assert min(seen["overlap"][f"{what}_s"] for what in ("transfer", "compute", "both")) > 0
    assert set(seen["step"]) == {"A0.0", "F0.0"}
    attention = seen["step"]["A0.0"]
    layers, micro_batches = config.model.layers, config.micro_batches
    assert attention["reads_asked_for"] == layers * micro_batches  # whom each token goes to
    assert 0 <= attention["transfers_hidden"] <= 1
    assert 0 < seen["step"]["F0.0"]["counts_wait_s"] < sum(attention["seconds"].values())
    # a CPU has no calls of CUDA to be seen
    assert [text.partition(":")[2] for text in problems(seen, gpus=1)] == [
        " the profiler of A0.0 sees no call of CUDA",
        " the profiler of F0.0 sees no call of CUDA",
    ]
    assert parity(Standin(server.address), ["cpu"], load_run_config(CONFIG), 2)["ok"]
    assert server.violations == []
