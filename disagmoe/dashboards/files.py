"""The generated files: what git holds is exactly what the generator writes."""

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path

from disagmoe.dashboards.catalogue import DASHBOARDS
from disagmoe.dashboards.rules import alerting_yaml, recording_yaml
from disagmoe.errors import ConfigError

RECORDING, ALERTING = "prometheus/rules/recording.yml", "prometheus/rules/alerts.yml"


def generated() -> dict[str, str]:
    """Return the text of each generated file by its path below the folder of dashboards.

    Raises ConfigError where Grafana's library is not installed.
    """
    if importlib.util.find_spec("grafana_foundation_sdk") is None:
        raise ConfigError(
            "the dashboards are made with grafana-foundation-sdk, which is not installed; "
            "pip install 'disagmoe[dashboards]'"
        )
    from disagmoe.dashboards.grafana import dashboard_json

    boards = {
        f"grafana/dashboards/{board.uid.removeprefix('disagmoe-')}.json": dashboard_json(board)
        for board in DASHBOARDS
    }
    return {**boards, RECORDING: recording_yaml(), ALERTING: alerting_yaml()}


def folder(chosen: Path | None) -> Path:
    """Return the folder of dashboards: the chosen one, that below here, or what was installed.

    Raises ConfigError where there is none.
    """
    places = [Path("dashboards"), Path(sys.prefix) / "share/disagmoe/dashboards"]
    for place in [chosen] if chosen else places:
        if place.is_dir():
            return place
    looked = chosen or " and no ".join(map(str, places))
    raise ConfigError(f"no {looked}; name the folder of the dashboards with --folder")


def write(place: Path, files: Mapping[str, str]) -> list[str]:
    """Write `files` below `place`; return those that have changed."""
    changed = stale(place, files)
    for name in changed:
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files[name], encoding="utf-8")
    return changed


def stale(place: Path, files: Mapping[str, str]) -> list[str]:
    """Return which of `files` are not below `place` as they should be."""
    return [name for name, text in files.items() if _read(place / name) != text]


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None
