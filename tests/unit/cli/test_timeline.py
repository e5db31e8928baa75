"""`disagmoe schedule show` on measured runs and into files: what it draws and what it refuses."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from disagmoe.cli.schedule import app
from disagmoe.errors import ConfigError
from disagmoe.runtime.clock import Kind, Span
from disagmoe.runtime.trace import TRACE_FILE, Hop, WorkerTrace, read_trace, write_trace

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


def test_a_trace_is_read_as_it_was_written(run_dir: Path) -> None:
    assert read_trace(run_dir) == TRACES


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either --config (a plan) or --run (a measured run)"),
        (["--config", CONFIG, "--run", "x"], "give either --config"),
        (["--run", "x", "--group", "A0"], "--set, --eval and --group belong to --config"),
        (["--config", CONFIG, "--step", 1], "--step belongs to --run"),
        (["--config", CONFIG, "--out", "a.svg", "--json"], "leave out --group and --json"),
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


def test_a_damaged_trace_is_refused(run_dir: Path) -> None:
    (run_dir / TRACE_FILE).write_bytes(b"no gzip")
    with pytest.raises(ConfigError, match=r"cannot read .*trace\.json\.gz"):
        read_trace(run_dir)


def test_a_directory_that_is_none_is_refused() -> None:
    done = show("--run", "/nowhere")
    assert str(done.exception) == "/nowhere is no directory; name the directory of a run"
