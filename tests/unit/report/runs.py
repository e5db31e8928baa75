"""Run directories that no run has made."""

import json
from dataclasses import replace
from pathlib import Path

from disagmoe.api.rundir import RunDir
from disagmoe.config.load import load_run_config
from disagmoe.config.resolve import resolve
from disagmoe.runtime.clock import Span
from disagmoe.runtime.trace import Hop, WorkerTrace, write_trace
from disagmoe.schedule.accounting import Kind
from tests.unit.api.runs import evaluation, step

ROOT = Path(__file__).resolve().parents[3]
SETS = ["train.eval.every=2", "train.steps=8", 'parallel.profile="off"']


def run_dir(path: Path, steps: int = 3, first: int = 0) -> Path:
    """A run under way that has done some steps, the second of them skipped, and whose workers were
    started again before the third. Its steps before `first` were done by another run."""
    config = resolve(load_run_config(ROOT / "configs/tiny.toml", SETS), cuda=False)
    made = RunDir(path, config)
    log = made.metrics
    for number in range(first, first + steps):
        if number == 2:
            log.restarted(2)
        log.step(step(number, skipped="a <target> is missing" if number == 1 else ""))
        if number % 2:
            log.evaluation(evaluation(number))
    made.close()
    return made.path


def add_result(path: Path, **changes: object) -> None:
    """Let the run have ended."""
    result = {
        "status": "ok",
        "steps": 3,
        "elapsed_s": 65.0,
        "mfu": 0.25,
        "restarts": {"died": 1},
        "checkpoint": None,
        "first_error": None,
        "versions": {"torch": "2.9"},
    }
    (path / "result.json").write_text(json.dumps(result | changes))


def add_trace(path: Path) -> None:
    """Trace step 2 on both workers: an op, a transfer, an op."""
    attention = WorkerTrace(
        2,
        (
            Span(Kind.COMPUTE, "attn_fwd L0 m0", 0.0, 1.0),
            Span(Kind.SEND, "", 1.0, 1.5),
            Span(Kind.IDLE, "", 1.5, 4.0),
        ),
        (Hop("A0>F0.act", "L0 m0", True, 64, 1.0, 2.0),),
    )
    experts = replace(
        attention,
        spans=(
            Span(Kind.RECV_WAIT, "", 1.0, 2.0),
            Span(Kind.COMPUTE, "experts_fwd L0 m0", 2.0, 4.0),
        ),
        hops=(Hop("A0>F0.act", "L0 m0", False, 64, 1.0, 2.0),),
    )
    write_trace(path / "trace.json.gz", {"A0.0": [attention], "F0.0": [experts]})
