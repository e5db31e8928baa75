"""What a person sees of a run."""

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from disagmoe.api import (
    CheckpointSaved,
    Result,
    RunConfig,
    RunPlaced,
    RunResumed,
    ScheduleTuned,
)
from disagmoe.api.tally import Tally
from disagmoe.cli.progress import ShowProgress, place_lines, step_line, summary, tuned_line
from disagmoe.config.load import override
from disagmoe.config.resolve import resolve
from tests.unit.api.runs import evaluation, placed, started, step

ROOT = Path(__file__).resolve().parents[3]


def result(steps: int, **changes: object) -> Result:
    tally = Tally()
    for event in (started(), *(step(i) for i in range(steps))):
        tally.add(event)
    made = tally.result(
        "ok", first_error=None, peak_memory_total_bytes=2**31, elapsed_s=65.0, path=Path("/run")
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def shown(steps: Sequence[int], of: int, *, terminal: bool) -> str:
    out = io.StringIO()
    show = ShowProgress(Console(file=out, force_terminal=terminal, width=120))
    loaded = RunConfig.load(ROOT / "configs/tiny.toml")
    config = resolve(override(loaded, [f"train.steps={of}"]), cuda=False)
    show.on_begin(config, Path("/run"))
    show.on_start(started())
    for number in steps:
        show.on_step(step(number, skipped="no target" if number == 1 else ""))
    show.on_eval(evaluation(1))
    show.on_end(result(2))
    return out.getvalue()


def test_a_step_in_one_line() -> None:
    assert step_line(step(1)) == "loss 4.0000  50 tokens/s  2.0 s/step  computes A0 75 % F0 50 %"


def test_what_was_measured_in_one_line() -> None:
    loaded = RunConfig.load(ROOT / "configs/tiny.toml")
    sets = ["parallel.attention_workers=2", "parallel.attention_shares=[2, 1]"]
    tuned = ScheduleTuned(
        config=override(loaded, [*sets, "parallel.in_flight=3"]),
        seconds={"attn_fwd": 0.0123, "rows": 1.5},
        expert_shares=[0.25, 0.75],
        planned_s=2.5,
        gap=1.034,
        programs_sha256="00",
    )
    assert tuned_line(tuned) == (
        "measured, in ms per micro-batch: attn_fwd 12.30, rows 1500.00; up to 3 in flight; planned "
        "2.5 s/step without its end, 3.4 % above the lower bound; attention_shares = [2.0, 1.0]; "
        "expert_shares = [0.25, 0.75] would suit these workers better"
    )


def test_who_is_where() -> None:
    assert list(place_lines(placed(), shared=False)) == [
        "placed on 10.0.0.1 (node aaaaaaaa): A0.0 GPU 3 (NVIDIA H800) mlx5_3+mlx5_4",
        "placed on 10.0.0.2 (node bbbbbbbb): F0.0",
    ]
    same = replace(placed().seats[1], worker="F0.1")
    both = RunPlaced(seats=(placed().seats[1], same))
    assert list(place_lines(both, shared=True)) == [
        "placed on 10.0.0.2 (node bbbbbbbb): F0.0, F0.1, which share this machine"
    ]


def test_a_run_on_a_cluster_says_so_and_whom_it_waits_for() -> None:
    out = io.StringIO()
    show = ShowProgress(Console(file=out, width=120))
    config = RunConfig.load(ROOT / "configs/tiny.toml", ["cluster.mode=cluster"])
    show.on_begin(config, Path("/run"))
    show.on_notice("waits")
    show.on_place(placed())
    assert out.getvalue().splitlines() == [
        "run tiny: 1 x (1 attention + 1 expert) workers on a cluster, auto, auto; /run",
        "waits",
        *place_lines(placed(), shared=False),
    ]


def test_plain_lines_where_there_is_no_terminal() -> None:
    assert shown([0, 1], 2, terminal=False).splitlines() == [
        "run tiny: 1 x (1 attention + 1 expert) workers on this machine, cpu, fp32; /run",
        "workers started (process ids): A0.0 11, F0.0 12",
        "step 1/2  loss 5.0000  50 tokens/s  2.0 s/step  computes A0 75 % F0 50 %",
        "step 2/2  loss 4.0000  50 tokens/s  2.0 s/step  computes A0 75 % F0 50 %",
        "step 2: update skipped, because no target",
        "step 2: held-out loss 7.0000 over 50 tokens, 500 ms",
        *summary(result(2)),
    ]


def test_a_long_run_does_not_write_a_line_per_step() -> None:
    lines = shown(range(1000), 1000, terminal=False).splitlines()
    steps = [line for line in lines if line.startswith("step ") and "/1000 " in line]
    assert len(steps) == 51
    assert steps[0].startswith("step 1/1000 ")
    assert steps[-1].startswith("step 1000/1000 ")


def test_a_terminal_shows_the_step_live() -> None:
    text = shown([0, 1], 2, terminal=True)
    assert "step 2/2" not in text
    assert "2/2" in text
    assert "loss 4.0000" in text
    assert "step 2: update skipped, because no target" in text


def test_the_summary() -> None:
    assert list(summary(result(2, eval_loss=4.5))) == [
        "ok: 2 steps in 1 min 05 s",
        "loss 5.0000 -> 4.0000, held out 4.5000",
        "50 tokens/s, 2.0 s per step; computes A0 75 % F0 50 % of the time",
        "A0: utilisation 75 %, exposed communication 25 %, bubble 0 %",
        "F0: utilisation 50 %, exposed communication 50 %, bubble 0 %",
        "peak memory: A0.0 1001 B, F0.0 900 B; 2.0 GiB in all processes together",
        "result: /run/result.json, metrics: /run/metrics.jsonl",
    ]


def test_the_summary_of_a_run_without_steps_points_at_the_logs() -> None:
    assert list(summary(result(0, status="failed", skipped_steps=3))) == [
        "failed: 0 steps in 1 min 05 s",
        "3 steps made no update",
        "peak memory: 2.0 GiB in all processes together",
        "result: /run/result.json, metrics: /run/metrics.jsonl",
        "logs: /run/logs",
    ]


def said(tell: Callable[[ShowProgress], None]) -> list[str]:
    out = io.StringIO()
    tell(ShowProgress(Console(file=out, force_terminal=False, width=120)))
    return out.getvalue().splitlines()


def test_where_a_run_goes_on_and_what_is_new() -> None:
    event = RunResumed(step=4, place="/c/step-4", elapsed_s=1.5, same_programs=True)
    assert said(lambda show: show.on_resumed(event)) == [
        "loaded /c/step-4 in 1.5 s; goes on after step 4 with the same programs"
    ]
    other = replace(event, same_programs=False)
    assert said(lambda show: show.on_resumed(other))[0].endswith("with other programs")
    text = "train.steps: 10 -> 20"
    assert said(lambda show: show.on_notice(text)) == [text]


def test_what_is_saved() -> None:
    event = CheckpointSaved(
        step=6, place="/c/step-6", size_bytes=2**20, elapsed_s=1.5, deleted=(2, 3), problem=""
    )
    assert said(lambda show: show.on_checkpoint(event)) == [
        "step 6: saved 1.0 MiB in 1.5 s; /c/step-6; deleted step-2, step-3"
    ]
    problem = replace(event, deleted=(), problem="step-2: cannot be deleted")
    assert said(lambda show: show.on_checkpoint(problem)) == [
        "step 6: saved 1.0 MiB in 1.5 s; /c/step-6",
        "warning: step-2: cannot be deleted",
    ]


def test_the_summary_says_how_to_go_on() -> None:
    stopped = result(
        2, status="stopped", first_step=1, checkpoint="/c/step-1", first_error="F0.0 cannot write"
    )
    lines = list(summary(stopped))
    assert lines[0] == "stopped: 2 steps (1 of them before) in 1 min 05 s"
    assert lines[-3:] == [
        "last complete checkpoint: /c/step-1",
        "while stopping: F0.0 cannot write",
        "to go on: disagmoe train --resume /run",
    ]
    assert list(summary(replace(stopped, status="ok", first_error=None)))[-1] == lines[-3]
