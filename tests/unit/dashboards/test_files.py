"""Generated files: git holds what the generator writes, and Grafana can read it."""

import json
from pathlib import Path
from typing import Any

import pytest

from disagmoe.dashboards.files import folder, generated, stale, write
from disagmoe.errors import ConfigError
from disagmoe.metrics.catalogue import markdown

ROOT = Path(__file__).resolve().parents[3]
FILES = generated()
BOARDS = {name: json.loads(text) for name, text in FILES.items() if name.endswith(".json")}


def test_git_holds_what_the_generator_writes() -> None:
    assert stale(ROOT / "dashboards", FILES) == [], "run `disagmoe dashboards write`"
    assert sorted(
        str(path.relative_to(ROOT / "dashboards"))
        for folder in ("grafana/dashboards", "prometheus/rules")
        for path in (ROOT / "dashboards" / folder).iterdir()
    ) == sorted(FILES)


def test_the_table_of_metrics_is_fresh() -> None:
    written = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    assert written == markdown(), "run `disagmoe dashboards write --docs docs/metrics.md`"


def test_changes_are_written_and_nothing_else(tmp_path: Path) -> None:
    files = {"a/b.json": "1", "c.yml": "2"}
    (tmp_path / "c.yml").write_text("2")
    assert stale(tmp_path, files) == ["a/b.json"]
    assert write(tmp_path, files) == ["a/b.json"]
    assert stale(tmp_path, files) == []


def test_a_folder_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=f"no {tmp_path}/none; name the folder .* --folder"):
        folder(tmp_path / "none")
    monkeypatch.setattr("sys.prefix", str(tmp_path / "venv"))  # nothing is installed there
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"no dashboards and no .*share/disagmoe"):
        folder(None)
    (tmp_path / "dashboards").mkdir()
    assert folder(None) == Path("dashboards")


def test_without_the_library_of_grafana(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'disagmoe\[dashboards\]'"):
        generated()


def all_panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    rows = [panel for panel in board["panels"] if panel["type"] == "row"]
    inside = [panel for row in rows for panel in row["panels"]]
    return [panel for panel in [*board["panels"], *inside] if panel["type"] != "row"]


@pytest.mark.parametrize("name", BOARDS)
def test_each_dashboard_has_its_variables(name: str) -> None:
    variables = {one["name"]: one for one in BOARDS[name]["templating"]["list"]}
    assert list(variables) == ["source", "run", "window"]
    assert variables["run"]["query"] == "label_values(disagmoe_target_steps, run)"
    assert variables["run"]["allValue"] == ".*"
    assert variables["window"]["current"]["value"] == "5m"


@pytest.mark.parametrize("name", BOARDS)
def test_each_panel_is_one_that_grafana_draws(name: str) -> None:
    board = BOARDS[name]
    panels = all_panels(board)
    assert len(panels) >= 5
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    kinds = {"timeseries", "stat", "state-timeline", "heatmap", "table"}
    assert {panel["type"] for panel in panels} <= kinds
    for panel in panels:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${source}"}
        assert [target["refId"] for target in panel["targets"]] == ["A", "B"][
            : len(panel["targets"])
        ]


def test_the_dashboards_have_what_they_are_for() -> None:
    kinds = {name: {panel["type"] for panel in all_panels(board)} for name, board in BOARDS.items()}
    assert "state-timeline" in kinds["grafana/dashboards/stages.json"]
    assert "heatmap" in kinds["grafana/dashboards/experts.json"]
    titles = [panel["title"] for panel in all_panels(BOARDS["grafana/dashboards/overview.json"])]
    assert {"Loss", "Tokens/s", "MFU", "Utilisation", "Bubble", "Exposed communication"} <= set(
        titles
    )
