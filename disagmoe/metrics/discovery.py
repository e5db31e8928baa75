"""Where Prometheus finds the processes of a run: file_sd and http_sd, the same list in both."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disagmoe.metrics.endpoint import target

DISCOVERY_FILE = "prom_sd.json"
JOB = "disagmoe"
DRIVER = "driver"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An endpoint of a run."""

    instance: str
    """A worker such as A0.1, or `driver`. Named, so that its series go on when it comes back on
    another port."""
    stage: str
    host: str
    port: int


def groups(run: str, targets: Iterable[Target]) -> list[dict[str, Any]]:
    """Return `targets` as Prometheus takes them."""
    return [
        {
            "targets": [target(one.host, one.port)],
            "labels": {
                "job": JOB,
                "run": run,
                "instance": one.instance,
                "stage": one.stage,
                "host": one.host,
            },
        }
        for one in targets
    ]


def write_groups(paths: Sequence[Path], found: list[dict[str, Any]]) -> None:
    """Write the same list to each of `paths`, whole or not at all. Raises OSError."""
    text = json.dumps(found, indent=2) + "\n"
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        # not *.json, which a Prometheus that watches the folder would read
        partial = path.with_name(f"{path.name}.partial")
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
