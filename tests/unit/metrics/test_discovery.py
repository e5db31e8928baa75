"""The list of targets."""

import json
from pathlib import Path

from disagmoe.metrics.discovery import Target, groups, write_groups

TARGETS = [
    Target(instance="r1.A0.1", stage="A0", host="10.0.0.7", port=9101),
    Target(instance="driver", stage="driver", host="fd00::1", port=9100),
]


def test_targets_as_prometheus_takes_them(tmp_path: Path) -> None:
    found = groups("run-7", TARGETS)
    assert found == [
        {
            "targets": ["10.0.0.7:9101"],
            "labels": {
                "job": "disagmoe",
                "run": "run-7",
                "instance": "r1.A0.1",
                "stage": "A0",
                "host": "10.0.0.7",
            },
        },
        {
            "targets": ["[fd00::1]:9100"],
            "labels": {
                "job": "disagmoe",
                "run": "run-7",
                "instance": "driver",
                "stage": "driver",
                "host": "fd00::1",
            },
        },
    ]
    places = [tmp_path / "prom_sd.json", tmp_path / "watched" / "run-7.json"]
    write_groups(places, found)
    assert [json.loads(place.read_text()) for place in places] == [found, found]
    assert [path.name for path in (tmp_path / "watched").iterdir()] == ["run-7.json"]
