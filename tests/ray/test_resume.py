"""A run whose processes are all killed goes on to the same bits."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from disagmoe.actors.startup import open_data
from disagmoe.api import Result
from disagmoe.api.preflight import preflight
from disagmoe.checkpoint.catalogue import SET_ASIDE, complete_steps
from disagmoe.checkpoint.find import find
from disagmoe.checkpoint.load import Wanted, load
from disagmoe.checkpoint.slices import Kind, Slice
from disagmoe.config.run import RunConfig
from disagmoe.model import names
from disagmoe.runtime.shards import live_slices
from disagmoe.runtime.step import WorkerRuntime
from disagmoe.runtime.threads import ThreadedRun
from disagmoe.storage import Location

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]

KINDS = (Kind.WEIGHT, Kind.MASTER, Kind.EXP_AVG, Kind.EXP_AVG_SQ)
SETS = ("train.precision=bf16", "train.eval.every=0", "parallel.profile=off")
SAVING = ("checkpoint.interval_steps=5", "checkpoint.keep_last=0")

State = dict[tuple[Kind, str], torch.Tensor]


def options(*sets: str) -> list[str]:
    return [word for one in sets for word in ("--set", one)]


def straight(small_config: Path) -> tuple[list[tuple[float, float]], State]:
    """Losses and norms of ten steps on threads, and the state after them."""
    torch.set_num_threads(1)
    config = preflight(RunConfig.load(small_config, [*SETS, "train.steps=10"]))
    threads = ThreadedRun(config, open_data(config))
    numbers = []
    for step in range(10):
        report = next(iter(threads.each(partial(WorkerRuntime.run_step, step=step)).values()))
        numbers.append((report.loss, report.grad_norm))
    state = {}
    shapes = names.global_shapes(config.model)
    for runtime in threads.workers.values():
        for live in live_slices(runtime.update):
            name, start, stop = live.slice.name, live.slice.start, live.slice.stop
            for kind, tensor in live.tensors.items():
                whole = state.setdefault(
                    (kind, name), torch.full((torch.Size(shapes[name]).numel(),), torch.nan)
                )
                whole[start:stop] = tensor.float()
    threads.close()
    return numbers, state


def saved_state(run_dir: Path) -> State:
    """What the last checkpoint of a run holds."""
    found = find(str(run_dir))
    state = {}
    wanted = []
    for name, entry in found.manifest.parameters.items():
        size = torch.Size(entry.shape).numel()
        for kind in KINDS:
            state[kind, name] = torch.empty(size)
            wanted.append(Wanted(Slice(name, entry.shape, 0, size), kind, state[kind, name]))
    load(found.place, found.manifest, wanted)
    return state


def rows(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def kill_all(pid: int) -> None:
    """As when the machine goes down: the script, its driver, its workers and its Ray."""
    root = psutil.Process(pid)
    for process in (root, *root.children(recursive=True)):
        os.kill(process.pid, signal.SIGKILL)


def test_five_steps_a_kill_and_five_more_are_ten(
    train: Callable, launch: Callable, small_config: Path, tmp_path: Path, ray_tmpdir: str
) -> None:
    run_dir = tmp_path / "run"
    # longer than wanted, so that the kill comes in the middle of steps and saves
    killed = train("--run-dir", run_dir, *options(*SETS, *SAVING, "train.steps=100000"))
    killed.wait_for(r"\nstep 10: saved ")
    kill_all(killed.process.pid)
    assert killed.finish() == -signal.SIGKILL
    for left in Path(ray_tmpdir).iterdir():  # nobody was left to delete it
        shutil.rmtree(left)
    assert not (run_dir / "result.json").exists()
    last = rows(run_dir)[-1]["step"]
    assert last >= 9

    resume = ("--resume", f"{run_dir}@5", "--set", "train.steps=10")
    again = launch("-m", "disagmoe", "train", *resume, "--json")
    assert again.finish() == 0, again.stderr
    again.expect(r"train\.steps: 100000 -> 10")
    again.expect(r"checkpoints after step 5 are set aside: .*step-10")
    again.expect(rf"metrics\.jsonl: {last - 4} lines after step 5 cut off")
    again.expect(r"loaded .*/step-5 in .*; goes on after step 5 with the same programs")
    result = Result.load(run_dir)
    assert again.stdout == result.to_json() + "\n"
    assert (result.status, result.first_step, result.steps) == ("ok", 5, 10)
    assert result.checkpoint == str(run_dir / "checkpoints/step-10")

    numbers, state = straight(small_config)
    assert [(row["loss"], row["grad_norm"]) for row in rows(run_dir)] == numbers
    assert [row["step"] for row in rows(run_dir)] == list(range(10))
    found = saved_state(run_dir)
    assert found.keys() == state.keys()
    assert [key for key in state if not torch.equal(found[key], state[key])] == []
    assert complete_steps(Location.parse(str(run_dir / "checkpoints"))) == [5, 10]
    assert not (run_dir / "checkpoints/step-10" / SET_ASIDE).exists()

    done = launch("-m", "disagmoe", "train", "--resume", run_dir)
    assert done.finish() == 0, done.stderr
    done.expect(r"^ok: 10 steps \(5 of them before\)")
