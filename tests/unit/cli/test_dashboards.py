"""`disagmoe dashboards` and `disagmoe report` on the command line."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from disagmoe.cli.main import app
from tests.unit.report.runs import run_dir

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    copy = tmp_path / "dashboards"
    shutil.copytree(ROOT / "dashboards", copy)
    return copy


def test_fresh_files_pass(folder: Path) -> None:
    result = CliRunner().invoke(app, ["dashboards", "check", "--folder", str(folder), "--json"])
    assert result.exit_code == 0
    counts = json.loads(result.stdout)
    assert counts.pop("expressions") > 50
    assert counts == {"empty": 0, "errors": 0}


def test_stale_files_fail_and_are_written(folder: Path) -> None:
    board = folder / "grafana/dashboards/overview.json"
    board.write_text("{}")
    arguments = ["dashboards", "check", "--folder", str(folder)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert "grafana/dashboards/overview.json is stale; run `disagmoe dashboards write`" in (
        result.stderr
    )
    docs = folder / "metrics.md"
    written = CliRunner().invoke(
        app, ["dashboards", "write", "--folder", str(folder), "--docs", str(docs)]
    )
    assert written.stdout.split() == [str(board)]
    assert docs.read_text() == (ROOT / "docs/metrics.md").read_text()
    assert CliRunner().invoke(app, arguments).exit_code == 0


def test_a_report_is_written_whole(tmp_path: Path) -> None:
    path = run_dir(tmp_path / "r")
    result = CliRunner().invoke(app, ["report", str(path)])
    assert result.stdout.split() == [str(path / "report.html")]
    assert (path / "report.html").read_text().endswith("</html>\n")
    elsewhere = tmp_path / "other.html"
    CliRunner().invoke(app, ["report", str(path), "--out", str(elsewhere)])
    assert elsewhere.exists()
    assert not list(tmp_path.rglob("*.partial"))
