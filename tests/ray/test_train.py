"""Training end to end: real processes, a real Ray, real sockets."""

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from disagmoe.actors.merge import group_shares
from disagmoe.api import Result
from disagmoe.api.preflight import preflight
from disagmoe.config.run import RunConfig
from disagmoe.data.source import PreparedSource
from disagmoe.runtime.clock import seconds_by_kind
from disagmoe.runtime.measured import one_step
from disagmoe.runtime.step import WorkerRuntime
from disagmoe.runtime.threads import ThreadedRun
from disagmoe.runtime.trace import read_trace
from disagmoe.schedule.from_config import compile_for
from disagmoe.schedule.text import read_programs

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]

ROOT = Path(__file__).resolve().parents[2]
GLOBAL = ("loss", "balance", "z", "grad_norm", "lr", "tokens", "valid_targets", "eval_loss")
WORKERS = ("A0.0", "A0.1", "F0.0", "F0.1")


def metrics(run_dir: Path) -> list[dict[str, Any]]:
    """What `metrics.jsonl` says of the run as a whole, step by step."""
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [{name: row[name] for name in GLOBAL if name in row} for row in rows]


def assert_shares_agree(run_dir: Path, result: Result) -> None:
    """The trace, `metrics.jsonl` and `result.json` say the same of the time, within 1 %."""
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    traces = read_trace(run_dir)
    for step in sorted({trace.step for trace in traces["A0.0"]}):
        traced = {
            worker: seconds_by_kind(trace.spans) for worker, trace in one_step(traces, step).items()
        }
        for group, shares in group_shares([traced]).items():
            assert asdict(shares) == pytest.approx(rows[step]["shares"][group], abs=0.01)
    total = group_shares([row["seconds"] for row in rows[1:]])
    for group, shares in total.items():
        assert asdict(result.shares[group]) == pytest.approx(asdict(shares), abs=1e-9)


@pytest.fixture(scope="session")
def expected(small_config: Path) -> list[dict[str, Any]]:
    """The same of a run whose workers are threads."""
    torch.set_num_threads(1)
    config = preflight(RunConfig.load(small_config))
    source = PreparedSource.open(config.data, config.train, vocab_size=config.model.vocab_size)
    threads = ThreadedRun(config, source)
    rows = []
    for step in range(24):
        report = next(iter(threads.each(partial(WorkerRuntime.run_step, step=step)).values()))
        rows.append({name: getattr(report, name) for name in GLOBAL[:-1]})
        if step in (9, 19, 23):
            evaluation = next(iter(threads.each(WorkerRuntime.evaluate).values()))
            rows[-1]["eval_loss"] = evaluation.loss
    threads.close()
    return rows


def listening(pid: int) -> set[str]:
    """Addresses on which `pid` and the processes below it listen."""
    root = psutil.Process(pid)
    found = [c for p in (root, *root.children(recursive=True)) for c in p.net_connections()]
    return {c.laddr.ip for c in found if c.status == psutil.CONN_LISTEN}


def test_a_run_equals_threads_bit_for_bit(
    train: Callable,
    leftovers: Callable,
    small_config: Path,
    expected: list[dict[str, Any]],
    tmp_path: Path,
) -> None:
    run_dir = tmp_path / "run"
    run = train("--run-dir", run_dir, "--json")
    pids = {worker: run.pid_of(worker) for worker in WORKERS}
    addresses = listening(run.process.pid)
    assert run.finish() == 0, run.stderr
    assert leftovers() == []
    assert len(set(pids.values())) == 4
    assert addresses & {"127.0.0.1", "::ffff:127.0.0.1"}
    assert addresses <= {"127.0.0.1", "::ffff:127.0.0.1"}
    assert metrics(run_dir) == expected

    result = Result.load(run_dir)
    assert run.stdout == result.to_json() + "\n"
    assert (result.status, result.steps, result.first_error) == ("ok", 24, None)
    assert (result.first_loss, result.last_loss) == (expected[0]["loss"], expected[-1]["loss"])
    assert result.eval_loss == expected[-1]["eval_loss"]
    assert {worker: place["pid"] for worker, place in result.placement.items()} == pids
    assert result.compute_share.keys() == {"A0", "F0"}
    assert all(0 < share < 1 for share in result.compute_share.values())
    assert result.shares.keys() == {"A0", "F0"}
    assert_shares_agree(run_dir, result)
    assert result.peak_memory_total_bytes > sum(result.peak_memory_bytes.values())

    asked, used = preflight(RunConfig.load(small_config)), RunConfig.load(run_dir / "config.toml")
    assert (asked.parallel.profile, used.parallel.profile) == ("on", "off")
    assert (asked.parallel.in_flight, used.parallel.in_flight) == (0, 3)
    assert used.parallel.costs.experts_fwd < 0.5 < asked.parallel.costs.experts_fwd  # seconds
    unlike = {"parallel": asked.parallel}
    assert used.model_copy(update=unlike) == asked
    train_programs = compile_for(used)[0].programs
    texts = [(run_dir / f"programs/{name}.sched").read_text() for name in ("A0", "F0")]
    assert read_programs(texts) == train_programs
    programs = {str(path.relative_to(run_dir)) for path in run_dir.rglob("*.sched")}
    assert programs == {f"programs/{name}.sched" for name in ("A0", "F0", "eval/A0", "eval/F0")}
    logs = {path.name for path in (run_dir / "logs").iterdir()}
    assert logs == {f"{name}.log" for name in (*WORKERS, "driver")}


def test_the_script_of_the_readme_gives_the_same(
    launch: Callable, leftovers: Callable, small_config: Path, expected: list[dict[str, Any]]
) -> None:
    script = launch(ROOT / "docs/examples/train.py", small_config, "train.steps=12")
    assert script.finish() == 0, script.stderr
    assert leftovers() == []
    first, second, last = script.stdout.splitlines()
    assert first.startswith(f"step 0: loss {expected[0]['loss']:.4f}, ")
    assert second.startswith(f"step 10: loss {expected[10]['loss']:.4f}, ")
    status, loss, path = last.split(" ", 2)
    assert (status, loss) == ("ok", str(expected[11]["loss"]))
    assert Path(path).parent == script.folder / "runs"
    assert [row["loss"] for row in metrics(Path(path))] == [row["loss"] for row in expected[:12]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "train.step=3"], r"train\.step"),
        (["--set", "model.vocab_size=64"], r"model\.vocab_size is 64, but the tokenizer of"),
        (["--set", 'data.paths=["nowhere"]'], r"nowhere: holds no prepared data"),
        (["--set", "train.eval.sequences=100000"], r"lower train\.sequence_length or"),
    ],
    ids=["unknown key", "vocabulary", "no data", "too little data"],
)
def test_a_run_that_cannot_start_leaves_nothing(
    train: Callable, leftovers: Callable, tmp_path: Path, arguments: list[str], message: str
) -> None:
    run = train("--run-dir", tmp_path / "run", *arguments)
    assert run.finish() == 2
    assert run.stdout == ""
    run.expect(message)
    assert not (tmp_path / "run").exists()
    assert leftovers() == []
