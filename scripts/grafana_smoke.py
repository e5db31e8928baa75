"""Ask a Grafana for the data of every panel: `make grafana-smoke`; needs Docker.

Starts Prometheus and Grafana by dashboards/compose.yaml and a run on the quickstart's data, waits
for metrics, sends every query of every provisioned dashboard to Grafana's API, ends all of them.
"""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
GRAFANA = "http://127.0.0.1:3000"
COMPOSE = ["docker", "compose", "--file", str(ROOT / "dashboards/compose.yaml")]
SOURCE = {"type": "prometheus", "uid": "disagmoe-prometheus"}
START_S, RUN_S = 120.0, 90.0


def ask(path: str, body: object = None) -> Any:
    """Return the JSON that Grafana answers."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        GRAFANA + path, data=data, headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def wait_for_grafana() -> None:
    """Return once it is healthy; end the script when that takes too long."""
    end_s = time.monotonic() + START_S
    while True:
        try:
            if ask("/api/health")["database"] == "ok":
                return
        except (OSError, ValueError):
            pass
        if time.monotonic() > end_s:
            sys.exit(f"no Grafana at {GRAFANA} within {START_S:g} s")
        time.sleep(1)


@contextmanager
def servers() -> Iterator[None]:
    """Prometheus and Grafana during the block."""
    (ROOT / "runs/targets").mkdir(parents=True, exist_ok=True)
    subprocess.run([*COMPOSE, "up", "--detach"], check=True)
    try:
        wait_for_grafana()
        yield
    finally:
        subprocess.run([*COMPOSE, "down"], check=True)


@contextmanager
def training() -> Iterator[None]:
    """A run that lasts longer than the block."""
    command = [sys.executable, "-m", "disagmoe", "train", "--config", "configs/quickstart.toml"]
    sets = ["train.steps=100000", "train.eval.every=5", "metrics.targets_dir=runs/targets"]
    sets += ["metrics.attention_peak_flops=1e11", "metrics.expert_peak_flops=1e11"]
    sets += ["metrics.link_bytes_per_s=1e9"]
    command += [part for one in sets for part in ("--set", one)]
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            yield
        finally:
            process.terminate()


def panels(uid: str) -> Iterator[dict[str, Any]]:
    """The panels of a provisioned dashboard."""
    found = ask(f"/api/dashboards/uid/{uid}")["dashboard"]["panels"]
    for panel in found:
        yield from panel.get("panels", [])
        if "targets" in panel:
            yield panel


def values(expr: str) -> int:
    """How many values Grafana has for an expression."""
    expr = expr.replace("$run", ".*").replace("$window", "1m")
    query = {"refId": "A", "datasource": SOURCE, "expr": expr, "range": True, "intervalMs": 5000}
    body = {"queries": [query | {"maxDataPoints": 100}], "from": "now-5m", "to": "now"}
    frames = ask("/api/ds/query", body)["results"]["A"].get("frames", [])
    return sum(len(frame["data"]["values"][0]) for frame in frames if frame["data"]["values"])


def main() -> None:
    """Check all dashboards; exit with 1 where a panel has no data."""
    empty = []
    with servers(), training():
        time.sleep(RUN_S)
        for file in sorted((ROOT / "dashboards/grafana/dashboards").glob("*.json")):
            uid = json.loads(file.read_text())["uid"]
            for panel in panels(uid):
                for target in panel["targets"]:
                    try:
                        count = values(target["expr"])
                    except urllib.error.HTTPError as error:
                        sys.exit(f"{uid}, {panel['title']}: {error} {error.read()!r}")
                    if not count:
                        empty.append(f"{uid}, {panel['title']}: {target['expr']}")
    sys.exit("\n".join(["no data:", *empty]) if empty else 0)


if __name__ == "__main__":
    main()
