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
from dataclasses import asdict, dataclass
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
from disagmoe.checkpoint.find import find
from disagmoe.cluster.contact import Contact
from disagmoe.cluster.environment import environment
from disagmoe.cluster.local import local_ray
from disagmoe.cluster.nodes import read_holders
from disagmoe.config.load import parse_run_config
from disagmoe.data.plan import PrepareOptions
from disagmoe.data.prepare import prepare
from disagmoe.data.tokenizer import TokenizerSpec

DETECT_WITHIN_S = 30.0
_HEARTBEAT_S = 5.0
_FORGOTTEN_WITHIN_S = 10.0
_POLL_S = 0.5
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one fault."""

    fault: Injection
    detect_s: float | None
    """From the fault to when it was known; None for one that was missed."""
    resume_s: float | None
    """From then until all workers are connected again."""
    steps_lost: int
    recovered: bool
    message: str
    """What the run said of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """What became of all."""

    seed: int
    outcomes: tuple[Outcome, ...]
    truthful_errors: int
    """Faults that ended a run, as they should, with an error that names them."""
    leaks: tuple[str, ...]
    """Processes that outlived their epoch; placement groups and actors that outlived their run."""
    bit_equal: bool
    """Whether all files of the last checkpoint, and losses and norms of all steps, are those of a
    run without the faults that were recovered from."""
    elapsed_s: float

    @property
    def hangs(self) -> int:
        """Faults that were not noticed in time."""
        return sum(one.detect_s is None or one.detect_s > DETECT_WITHIN_S for one in self.outcomes)

    @property
    def recovered(self) -> int:
        """Faults that were overcome, by a run that said what they were."""
        return sum(one.recovered for one in self.outcomes)

    @property
    def good(self) -> bool:
        """Whether nothing is wrong."""
        overcome = self.recovered == len(self.outcomes) and not self.hangs
        return overcome and not self.leaks and self.bit_equal and self.truthful_errors == 1

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "faults": len(self.outcomes) + 1,
            "recovered": self.recovered,
            "truthful_errors": self.truthful_errors,
            "hangs": self.hangs,
            "leaks": len(self.leaks),
            "bit_equal": self.bit_equal,
            "seed": self.seed,
            "elapsed_s": self.elapsed_s,
            "rows": [asdict(one) for one in self.outcomes],
            "leaked": list(self.leaks),
        }


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
        )
        self._say(line_of(self.outcomes[fault.number]))

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
                )
            if fault.kind == "driver" and fault.step <= step.step:
                self._kill_driver(fault)

    def _latest(self) -> Injection | None:
        """The fault that happened last and is not accounted for."""
        happened = [
            (at_s, fault)
            for fault in self._plan
            if fault.number not in self.outcomes
            and (at_s := fired_at(self._folder, fault.number)) is not None
        ]
        return max(happened, key=lambda one: one[0])[1] if happened else None

    def _kill_driver(self, fault: Injection) -> None:
        contact = Contact.read(self._run_dir)
        if contact is None or fired_at(self._folder, fault.number) is not None:
            return
        try:
            driver: Any = ray.get_actor(contact.driver)
            pid = ray.get(driver.ping.remote(), timeout=10)
        except (RayError, ValueError):  # it is gone for another reason; the next step will do
            return
        if note_fired(self._folder, fault.number):
            os.kill(pid, signal.SIGKILL)


def is_blamed(fault: Injection, message: str) -> bool:
    """Whether the `message` of a restart tells of `fault`; NaN is no reason for one."""
    if fault.kind in ("exception", "memory", "full disk"):
        words = {
            "exception": f"drill: fault {fault.number}",
            "memory": "out of memory",
            "full disk": "cannot write its",
        }
        return message.startswith(fault.worker) and words[fault.kind] in message
    blamed = {"driver": "the driver has died", "kill": f"{fault.worker} died"}
    blamed["freeze"] = f"{fault.worker} has answered nothing"
    return fault.kind in blamed and message.startswith(blamed[fault.kind])


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
    return Drill(
        seed=seed,
        outcomes=tuple(observer.outcomes.get(one.number) or _missed(one) for one in plan),
        truthful_errors=int(truthful),
        leaks=(*observer.leaks, *left_in_ray, *_left_processes()),
        bit_equal=_same(folder / "undisturbed", folder / "disturbed"),
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


def _missed(fault: Injection) -> Outcome:
    return Outcome(
        fault=fault,
        detect_s=None,
        resume_s=None,
        steps_lost=0,
        recovered=False,
        message="not noticed",
    )


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
            "checkpoint": {"interval_steps": EVERY},
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


def _same(one: Path, other: Path) -> bool:
    """Whether two runs have ended with the same bits, by the same way."""
    files = [
        [(file.name, file.sha256) for file in find(str(run_dir)).manifest.files]
        for run_dir in (one, other)
    ]
    return files[0] == files[1] and _numbers(one) == _numbers(other)


def _numbers(run_dir: Path) -> list[tuple[Any, ...]]:
    lines = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    keys = ("step", "loss", "grad_norm", "skipped")
    return [tuple(json.loads(line)[key] for key in keys) for line in lines]


def line_of(outcome: Outcome) -> str:
    """One row of the table."""
    fault = outcome.fault
    times = [
        "-" if seconds is None else f"{seconds:.1f} s"
        for seconds in (outcome.detect_s, outcome.resume_s)
    ]
    return (
        f"{fault.number + 1:>3} {fault.kind:<10} {fault.worker:<5} {fault.phase:<10} "
        f"step {fault.step:<4} detected {times[0]:>7}  resumed {times[1]:>7}  "
        f"lost {outcome.steps_lost}  {outcome.message[:60]}"
    )
