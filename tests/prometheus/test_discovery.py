"""Prometheus reads the list of targets, from the file and from the process of the script."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from disagmoe.metrics.discovery import DISCOVERY_FILE, JOB, Target, groups, write_groups
from disagmoe.metrics.endpoint import serve

pytestmark = [pytest.mark.prometheus, pytest.mark.gloo]  # sockets
TARGETS = [
    Target(instance="r1.A0.1", stage="A0", host="10.0.0.1", port=9100),
    Target(instance="driver", stage="driver", host="fd00::2", port=9200),
]
FOUND = groups("run-1", TARGETS)


@pytest.fixture
def sources(tmp_path: Path) -> Iterator[dict[str, Any]]:
    path = tmp_path / DISCOVERY_FILE
    write_groups([path], FOUND)
    endpoint = serve(CollectorRegistry(), "127.0.0.1", 0, lambda: FOUND)
    assert endpoint is not None
    with closing(endpoint):
        yield {
            "file_sd_configs": [{"files": [str(path)]}],
            "http_sd_configs": [{"url": f"http://127.0.0.1:{endpoint.port}/sd"}],
        }


@pytest.mark.parametrize("kind", ["file_sd_configs", "http_sd_configs"])
def test_targets_are_found(kind: str, sources: dict[str, Any], tmp_path: Path) -> None:
    config = tmp_path / "prometheus.yml"
    job = {"job_name": JOB, kind: sources[kind]}
    config.write_text(yaml.safe_dump({"scrape_configs": [job]}))
    done = subprocess.run(
        ["promtool", "check", "service-discovery", "--timeout=1s", str(config), JOB],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found = [one["labels"] for one in json.loads(done.stdout)]
    names = ("__address__", "job", "run", "instance", "stage", "host")
    assert sorted(tuple(one[name] for name in names) for one in found) == [
        ("10.0.0.1:9100", "disagmoe", "run-1", "r1.A0.1", "A0", "10.0.0.1"),
        ("[fd00::2]:9200", "disagmoe", "run-1", "driver", "driver", "fd00::2"),
    ]
