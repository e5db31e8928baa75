"""A drill: a training in which faults are made to happen, beside one in which they are not.

One run meets all faults but one, which is to end a run of its own: an error that comes back. All
runs share one Ray that is not their own, so that what they leave behind in it is seen.
"""

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util import list_named_actors

# isort: split
import psutil

from disagmoe.actors.injector import (
    DRILL_VARIABLE,
    Injection,
    fired_at,
    next_to_happen,
    note_fired,
    write_plan,
)
from disagmoe.api import (
    Callback,
    RunConfig,
    RunFailedError,
    RunRestarting,
    RunStarted,
    StepResult,
    Trainer,
)
from disagmoe.bench.drill import EVERY, drill, steps_of
from disagmoe.bench.outcomes import Drill, Files, Outcome, is_blamed, judged, missed
from disagmoe.checkpoint.catalogue import step_place
from disagmoe.checkpoint.find import complete_in
from disagmoe.checkpoint.manifest import read_manifest
from disagmoe.cluster.contact import Contact
from disagmoe.cluster.environment import environment
from disagmoe.cluster.local import local_ray
from disagmoe.cluster.nodes import read_holders
from disagmoe.config.load import parse_run_config
from disagmoe.data.plan import PrepareOptions
from disagmoe.data.prepare import prepare
from disagmoe.data.tokenizer import TokenizerSpec

_HEARTBEAT_S = 5.0
_FORGOTTEN_WITHIN_S = 10.0
_POLL_S = 0.5
Say = Callable[[str], None]


class _Observer(Callback):
    """Sees when faults become known and are overcome; injects those of the driver."""

    def __init__(self, plan: Sequence[Injection], folder: Path, say: Say) -> None:
        self._plan = plan
        self._folder = folder
        self._say = say
        self._run_dir = folder
        self._pids: set[int] = set()
        self._known: tuple[Injection, float, RunRestarting] | None = None
        self.outcomes: dict[int, Outcome] = {}
        self.leaks: list[str] = []

    def on_begin(self, config: RunConfig, run_dir: Path) -> None:
        self._run_dir = run_dir

    def on_start(self, started: RunStarted) -> None:
        now_s = time.time()
        for pid in self._pids:
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                if process.status() != psutil.STATUS_ZOMBIE:
                    self.leaks.append(f"{pid}: {' '.join(process.cmdline())}")
        self._pids = {worker.pid for worker in started.workers}
        if self._known is None:
            return
        fault, known_s, event = self._known
        self._known = None
        began_s = fired_at(self._folder, fault.number) or known_s
        self.outcomes[fault.number] = Outcome(
            fault=fault,
            detect_s=known_s - began_s,
            resume_s=now_s - known_s,
            steps_lost=event.steps_lost,
            recovered=is_blamed(fault, event.message),
            message=event.message.splitlines()[0],
            checkpoint=_next_checkpoint(event.step + event.steps_lost),
        )
        self._say(f"{_what(fault)}: goes on after {now_s - began_s:.1f} s")

    def on_restart(self, restarting: RunRestarting) -> None:
        fault = self._latest()
        if fault is not None:
            self._known = (fault, time.time(), restarting)

    def on_step(self, step: StepResult) -> None:
        for fault in self._plan:
            if fault.kind == "nan" and fault.step == step.step and step.skipped:
                self.outcomes[fault.number] = Outcome(
                    fault=fault,
                    detect_s=0.0,
                    resume_s=0.0,
                    steps_lost=0,
                    recovered=True,
                    message=f"update skipped, because {step.skipped}",
                    checkpoint=_next_checkpoint(step.step),
                )
        for fault in next_to_happen(self._folder, self._plan):
            if fault.kind == "driver" and fault.step <= step.step:
                self._kill_driver(fault)

    def _latest(self) -> Injection | None:
        """The fault that happened last and is not accounted for."""
        happened = [
            (at_s, fault)
            for fault in self._plan
            if fault.ends_epoch
            and fault.number not in self.outcomes
            and (at_s := fired_at(self._folder, fault.number)) is not None
        ]
        return max(happened, key=lambda one: one[0])[1] if happened else None

    def _kill_driver(self, fault: Injection) -> None:
        contact = Contact.read(self._run_dir)
        if contact is None:
            return
        try:
            driver: Any = ray.get_actor(contact.driver)
            pid = ray.get(driver.ping.remote(), timeout=10)
        except (RayError, ValueError):  # it is gone for another reason; the next step will do
            return
        if note_fired(self._folder, fault.number):
            os.kill(pid, signal.SIGKILL)


def _what(fault: Injection) -> str:
    return f"fault {fault.number + 1}, {fault.kind} of {fault.worker}, {fault.phase}"


def _next_checkpoint(done: int) -> int:
    """Steps in the first checkpoint of more than `done` steps."""
    return (done // EVERY + 1) * EVERY


def run_drill(seed: int, count: int, folder: Path, say: Say) -> Drill:
    """Meet `count` faults, the last of them in a run of its own, which it ends."""
    began_s = time.monotonic()
    data = _data(folder)
    workers = config_of(data, 1).parallel.worker_names
    plan = drill(seed, count - 1, workers)
    config = config_of(data, steps_of(plan))
    nan = [one for one in plan if one.kind == "nan"]
    faults = folder / "faults"
    # workers have the environment that their Ray was started with
    with environment({DRILL_VARIABLE: str(faults)}), local_ray(len(workers), 1):
        say(f"undisturbed run of {config.train.steps} steps")
        _run(config, folder / "undisturbed", nan, faults, lambda _: None)
        say(f"run with {len(plan)} faults")
        observer = _run(config, folder / "disturbed", plan, faults, say)
        say("run that meets the same error twice")
        ended = folder / "ended"
        truthful = _ends_truthfully(config_of(data, 6), ended, faults, workers[0])
        left_in_ray = _left_in_ray()
    files = [_files(folder / name) for name in ("undisturbed", "disturbed")]
    outcomes = [observer.outcomes.get(one.number) or missed(one) for one in plan]
    return Drill(
        seed=seed,
        outcomes=tuple(judged(one, *files) for one in outcomes),
        truthful_errors=int(truthful),
        leaks=(*observer.leaks, *left_in_ray, *_left_processes()),
        bit_equal=files[0] == files[1]
        and _numbers(folder / "undisturbed") == _numbers(folder / "disturbed"),
        elapsed_s=time.monotonic() - began_s,
    )


def _left_in_ray() -> list[str]:
    """What the runs have left in Ray, which may take a moment to forget it."""
    end_s = time.monotonic() + _FORGOTTEN_WITHIN_S
    while True:
        groups = [str(holder) for holders in read_holders().values() for holder in holders]
        actors = [f"actor {one['name']}" for one in list_named_actors(all_namespaces=True)]
        if not groups + actors or time.monotonic() > end_s:
            return groups + actors
        time.sleep(_POLL_S)


def _left_processes() -> list[str]:
    children = psutil.Process().children(recursive=True)
    texts = [f"{child.pid}: {' '.join(child.cmdline())}" for child in children]
    return [text for text in texts if "ray" in text]


def config_of(data: str, steps: int) -> RunConfig:
    """A tiny run of two attention and two expert workers."""
    model = {
        "family": "qwen3_moe",
        "vocab_size": 257,
        "hidden": 32,
        "layers": 2,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 8,
        "experts": 5,
        "top_k": 2,
        "expert_width": 16,
    }
    return parse_run_config(
        {
            "name": "drill",
            "model": model,
            "parallel": {
                "attention_workers": 2,
                "expert_workers": 2,
                "micro_batch_size": 3,
                "profile": "off",
            },
            "train": {"steps": steps, "global_batch_size": 8, "sequence_length": 32},
            "data": {"paths": [data]},
            "cluster": {
                "address": "auto",
                "device": "cpu",
                "heartbeat_timeout_s": _HEARTBEAT_S,
                "step_timeout_s": 60.0,
            },
            "checkpoint": {"interval_steps": EVERY, "keep_last": 0},
            "recovery": {"max_failures": 10_000, "backoff_s": 0.0},
        }
    )


def _data(folder: Path) -> str:
    text = folder / "text"
    text.mkdir(parents=True)
    for i in range(40):
        lines = (f"line {j} of {i} says {i * j} {'again ' * (j % 7)}\n" for j in range(12))
        (text / f"{i:02d}.txt").write_text("".join(lines), encoding="utf-8")
    out = str(folder / "data")
    tokenizer = TokenizerSpec(kind="bytes")
    options = PrepareOptions(
        inputs=[str(text / "*.txt")], out=out, excludes=[], tokenizer=tokenizer
    )
    prepare(options, lambda _: None)
    return out


def _run(
    config: RunConfig, run_dir: Path, plan: Sequence[Injection], faults: Path, say: Say
) -> _Observer:
    write_plan(faults, plan)
    observer = _Observer(plan, faults, say)
    Trainer(config, run_dir=run_dir, callbacks=[observer]).fit()
    return observer


def _ends_truthfully(config: RunConfig, run_dir: Path, faults: Path, worker: str) -> bool:
    """Whether a run ends with the error that comes at the same step each time, and says so."""
    fault = Injection(
        number=0, kind="exception", phase="forward", worker=worker, step=4, again=True
    )
    try:
        _run(config, run_dir, [fault], faults, lambda _: None)
    except RunFailedError as error:
        text, restarts = str(error), error.result.restarts
        named = text.startswith(f"{worker} failed at instruction") and "drill: fault 0" in text
        repeated = "the same error came at the same step" in text
        return named and repeated and restarts == {"raised": 1}
    return False


def _files(run_dir: Path) -> Files:
    folder, steps = complete_in(str(run_dir))
    manifests = {step: read_manifest(step_place(folder.place, step)) for step in steps}
    return {
        step: {file.name: file.sha256 for file in manifest.files}
        for step, manifest in manifests.items()
    }


def _numbers(run_dir: Path) -> list[tuple[Any, ...]]:
    lines = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    keys = ("step", "loss", "grad_norm", "skipped")
    return [tuple(json.loads(line)[key] for key in keys) for line in lines]
