"""A short run under a Prometheus: every expression on real data."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from disagmoe.dashboards.catalogue import unknown, unused
from disagmoe.dashboards.files import ALERTING, RECORDING
from disagmoe.dashboards.prometheus import Prometheus, PrometheusError, own_prometheus
from disagmoe.dashboards.rules import alerting_yaml, recording_yaml
from disagmoe.dashboards.verdict import (
    Verdict,
    compare,
    compare_channels,
    compare_result,
    compare_trace,
    judge,
    read_steps,
)
from disagmoe.errors import WorkerError
from disagmoe.metrics import catalogue
from disagmoe.metrics.discovery import DISCOVERY_FILE
from disagmoe.runtime.trace import read_trace

_RUN = "dashboards-check"
_EVERY_S = 1
_EVAL_EVERY = 32
_FIRST_TRACED, _TRACED = _EVAL_EVERY + 1, _EVAL_EVERY - 2
"""Steps whose trace is compared with what Prometheus shows for the same time: those between two
evaluations, whose time is counted and not traced."""
_SAVE_EVERY = _EVAL_EVERY - 2
"""Of two checkpoints the first comes before these steps, the second after all that are watched."""
_LEAST_S = 12.0
"""How long these are watched: rates need some scrapes."""
_MOST_STEPS = _TRACED - 6
"""After so many of them the time is up; the trace must hold all."""
_PATIENCE_S = 240.0
_STOP_S = 60.0
_POLL_S = 0.5

CONFIG = """\
name = "dashboards-check"
[model]
family = "qwen3_moe"
vocab_size = 257
hidden = 64
layers = 4
heads = 4
kv_heads = 2
head_dim = 16
experts = 6
top_k = 2
expert_width = 32
[parallel]
attention_workers = 1
expert_workers = 2
micro_batch_size = 2
profile = "off"
[train]
steps = 100000
global_batch_size = 8
sequence_length = 64
[train.loss]
aux_coef = 0.01
z_coef = 1e-3
[train.eval]
every = {eval_every}
sequences = 4
[checkpoint]
interval_steps = {save_every}
[data]
paths = ["{data}"]
[trace]
first_step = {first_traced}
steps = {traced}
[metrics]
attention_peak_flops = 1e11
expert_peak_flops = 1e11
link_bytes_per_s = 1e9
"""
"""Small, with everything in it that a panel shows."""


def check_live(
    folder: Path, say: Callable[[str], None], picture: Callable[[Prometheus, float, float], None]
) -> Verdict:
    """Start a Prometheus and a run in `folder`; evaluate every expression while the run goes on,
    let `picture` use the same span of time, end both, and compare with what the run has logged.

    Raises:
        ConfigError: prometheus is not installed.
        PrometheusError, WorkerError: one of them does not work.
    """
    run_dir = folder / _RUN
    rules = _write_rules(folder)
    config = _write_config(folder)
    say("starting a run and a prometheus")
    with (
        own_prometheus(folder, run_dir / DISCOVERY_FILE, rules, _EVERY_S) as server,
        _run(config, run_dir, folder / "train.log") as process,
    ):
        start_s, at_s = _watch(server, process, folder / "train.log")
        window_s = int(at_s - start_s)
        say(f"{window_s} s of a run; evaluating")
        verdict = judge(server, _RUN, f"{window_s}s", at_s)
        picture(server, start_s, at_s)
        _stop(process)
        steps = read_steps(run_dir)
        wrong = compare(server, steps, at_s) + compare_channels(server, steps, at_s)
        wrong += compare_trace(server, read_trace(run_dir), window_s, at_s)
        wrong += _checkpoints_differ(server, at_s)
        result = json.loads((run_dir / "result.json").read_text(encoding="utf-8"))
        wrong += compare_result(server, steps, result, at_s)
    wrong += [f"{name} is on no panel and in no rule" for name in unused()]
    wrong += [f"{name} is no metric" for name in unknown()]
    return Verdict(verdict.expressions, verdict.empty, (*verdict.errors, *wrong))


def _checkpoints_differ(server: Prometheus, at_s: float) -> list[str]:
    """The one before the watched steps is durable by now, and the next is not due."""
    found = [one.last for one in server.at(catalogue.CHECKPOINTS.name, at_s)]
    return [] if found == [1.0] else [f"{catalogue.CHECKPOINTS.name} is {found}, expected 1"]


def _write_rules(folder: Path) -> list[Path]:
    texts = {RECORDING: recording_yaml(), ALERTING: alerting_yaml()}
    paths = []
    for name, text in texts.items():
        path = folder / Path(name).name
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    return paths


def _write_config(folder: Path) -> Path:
    """Prepare some text, and return a config that trains on it."""
    text, data, config = folder / "text", folder / "data", folder / "run.toml"
    text.mkdir()
    for part in range(40):
        lines = "\n".join(f"line {i} of {part} says {i * part}" for i in range(100))
        (text / f"{part:02d}.txt").write_text(lines, encoding="utf-8")
    command = ["data", "prepare", "--tokenizer", "bytes", "--processes", "1"]
    _python([*command, "--input", str(text / "*.txt"), "--out", str(data)])
    filled = CONFIG.format(
        data=data,
        eval_every=_EVAL_EVERY,
        save_every=_SAVE_EVERY,
        first_traced=_FIRST_TRACED,
        traced=_TRACED,
    )
    config.write_text(filled, encoding="utf-8")
    return config


def _python(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "disagmoe", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S)
    if done.returncode:
        raise WorkerError(f"disagmoe {arguments[0]} failed: {done.stderr.strip()}")


@contextmanager
def _run(config: Path, run_dir: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "disagmoe", "train"]
    command += ["--config", str(config), "--run-dir", str(run_dir)]
    quiet = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (
        log.open("w") as out,
        subprocess.Popen(command, stdout=out, stderr=out, env=quiet) as process,
    ):
        try:
            yield process
        finally:
            _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _watch(server: Prometheus, process: subprocess.Popen[bytes], log: Path) -> tuple[float, float]:
    """Wait until there is enough to evaluate; return two moments between which all of it is."""
    end_s = time.monotonic() + _PATIENCE_S
    start_s: float | None = None
    while time.monotonic() < end_s:
        if process.poll() is not None:
            last = "\n".join(log.read_text(encoding="utf-8").splitlines()[-10:])
            raise WorkerError(f"the run has ended too early:\n{last}")
        # a moment ago, as what is scraped just now may not be there yet
        at_s = time.time() - _EVERY_S
        steps = [int(one.last) for one in server.at(catalogue.WORKER_STEPS.name, at_s)]
        done = min(steps, default=0) - _FIRST_TRACED
        if done >= 0 and start_s is None:
            start_s = at_s
        if start_s is not None and (at_s > start_s + _LEAST_S or done > _MOST_STEPS):
            return start_s, at_s
        time.sleep(_POLL_S)
    raise PrometheusError(f"no {_FIRST_TRACED} steps were scraped within {_PATIENCE_S:g} s")
