"""`disagmoe schedule show` on measured runs and into files: what it draws and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from disagmoe.cli.schedule import app
from disagmoe.errors import ConfigError
from disagmoe.runtime.clock import Span
from disagmoe.runtime.trace import TRACE_FILE, Hop, WorkerTrace, write_trace
from disagmoe.schedule.accounting import Kind

CONFIG = Path(__file__).resolve().parents[3] / "configs" / "tiny.toml"
TRACES = {
    "A0.0": [
        WorkerTrace(
            step=3,
            spans=(
                Span(Kind.COMPUTE, "attn_fwd L0 m0", 0.0, 1.0),
                Span(Kind.RECV_WAIT, "wait F0>A0.act L0 m0", 1.0, 2.0),
            ),
            hops=(Hop("A0>F0.act", "L0 m0", True, 64, 1.0, 1.25),),
        )
    ],
    "F0.0": [
        WorkerTrace(
            step=3,
            spans=(
                Span(Kind.IDLE, "", 0.0, 1.25),
                Span(Kind.COMPUTE, "experts_fwd L0 m0", 1.25, 2.0),
            ),
            hops=(Hop("A0>F0.act", "L0 m0", False, 64, 1.0, 1.25),),
        )
    ],
}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """The directory of a run that has traced one step."""
    (tmp_path / "config.toml").write_text(CONFIG.read_text())
    write_trace(tmp_path / TRACE_FILE, TRACES)
    return tmp_path


def show(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["show", *map(str, arguments)])


def test_a_measured_step_is_drawn_per_worker(run_dir: Path) -> None:
    done = show("--run", run_dir, "--width", 16)
    rows = [line for line in done.stdout.splitlines() if line[:4] in ("A0.0", "F0.0")]
    assert rows[:2] == ["A0.0 00000000--------", "F0.0 ..........000000"]
    assert "step 3 of " in done.stdout
    assert "utilisation 43.8 %, exposed communication 25.0 %, bubble 31.2 %" in done.stdout


def test_a_measured_step_becomes_a_picture(run_dir: Path) -> None:
    done = show("--run", run_dir, "--out", run_dir / "step.svg")
    assert done.exit_code == 0
    text = (run_dir / "step.svg").read_text(encoding="utf-8")
    for name in ("A0.0", "F0.0", "A0&gt;F0.act", "attention forward", "waits for the network"):
        assert name in text


def test_a_part_of_a_measured_step(run_dir: Path) -> None:
    done = show("--run", run_dir, "--step", 3, "--width", 16, "--from", 0.75, "--to", 1.5)
    rows = [line for line in done.stdout.splitlines() if line[:4] in ("A0.0", "F0.0")]
    assert rows[:2] == ["A0.0 00000-----------", "F0.0 ...........00000"]


def test_a_measured_step_as_json_is_one_object(run_dir: Path) -> None:
    shown = json.loads(show("--run", run_dir, "--json").stdout)
    workers, bars = shown.pop("workers"), shown.pop("bars")
    assert [worker["worker"] for worker in workers] == ["A0.0", "F0.0"]
    assert workers[0]["seconds"] == dict.fromkeys(Kind, 0.0) | {"compute": 1.0, "recv_wait": 1.0}
    assert (workers[0]["utilisation"], workers[0]["exposed_communication"]) == (0.5, 0.5)
    assert bars == [
        {"lane": lane, "what": what, "micro_batch": mb, "start": start, "end": end}
        for lane, what, mb, start, end in (
            ("A0.0", "attention forward", 0, 0.0, 1.0),
            ("A0.0", "waits for the network", None, 1.0, 2.0),
            ("F0.0", "experts forward", 0, 1.25, 2.0),
            ("A0>F0.act", "transfer of activations", 0, 1.0, 1.25),
        )
    ]
    assert shown.pop("gap") == shown.pop("makespan") / shown.pop("lower_bound")
    assert shown.pop("bound")
    assert shown == {"utilisation": 0.4375, "exposed_communication": 0.25, "bubble": 0.3125}


def test_a_plan_becomes_a_picture_and_says_nothing(tmp_path: Path) -> None:
    done = show("--config", CONFIG, "--out", tmp_path / "plan.png", "--to", 20)
    assert (done.exit_code, done.stdout) == (0, "")
    assert (tmp_path / "plan.png").stat().st_size > 10_000


@pytest.mark.parametrize("source", ["--config", "--run"])
def test_another_format_is_refused_before_anything_is_read(source: str) -> None:
    done = show(source, "/nowhere", "--out", "plan.pdf")
    assert isinstance(done.exception, ConfigError)  # exit code 2, by cli.main
    assert str(done.exception) == ("cannot draw to plan.pdf; name a file that ends in .svg or .png")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either --config (a plan) or --run (a measured run)"),
        (["--config", CONFIG, "--run", "x"], "give either --config"),
        (["--run", "x", "--group", "A0"], "--set, --eval and --group belong to --config"),
        (["--run", "x", "--set", "name='y'"], "--set, --eval and --group belong to --config"),
        (["--run", "x", "--eval"], "--set, --eval and --group belong to --config"),
        (["--config", CONFIG, "--step", 1], "--step belongs to --run"),
        (["--config", CONFIG, "--out", "a.svg", "--json"], "leave out --group and --json"),
        (["--config", CONFIG, "--out", "a.svg", "--group", "A0"], "leave out --group and --json"),
    ],
)
def test_options_that_do_not_go_together_are_bad_usage(
    arguments: list[object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")
    done = show(*arguments)
    assert done.exit_code == 2
    assert message in done.output


def test_a_run_without_a_trace_says_how_to_get_one(tmp_path: Path) -> None:
    done = show("--run", tmp_path)
    assert isinstance(done.exception, ConfigError)
    assert "holds no trace.json.gz; a run writes it" in str(done.exception)


def test_a_step_that_is_not_traced_names_those_that_are(run_dir: Path) -> None:
    done = show("--run", run_dir, "--step", 5)
    assert str(done.exception) == "step 5 is not traced; traced steps, counted from 0: 3"


def test_a_directory_that_is_none_is_refused() -> None:
    done = show("--run", "/nowhere")
    assert str(done.exception) == "/nowhere is no directory; name the directory of a run"


def test_a_trace_without_its_config_is_refused(run_dir: Path) -> None:
    (run_dir / "config.toml").unlink()
    done = show("--run", run_dir)
    assert isinstance(done.exception, ConfigError)
    assert "config.toml" in str(done.exception)
