"""A Prometheus of our own for the time of a check, and what one asks of any."""

import json
import math
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disagmoe.errors import ConfigError, DisagMoEError

_TIMEOUT_S = 10.0
_START_S = 60.0
_STOP_S = 10.0
_POLL_S = 0.2
_LOG_LINES = 5


class PrometheusError(DisagMoEError):
    """A Prometheus that does not answer, or refuses a query."""


@dataclass(frozen=True, slots=True)
class Series:
    """Values of one series over time; an instant query gives one of most expressions."""

    labels: Mapping[str, str]
    times_s: tuple[float, ...]
    values: tuple[float, ...]

    @property
    def last(self) -> float:
        """The newest value."""
        return self.values[-1]


class Prometheus:
    """A server at `url`."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def at(self, expr: str, time_s: float) -> list[Series]:
        """Evaluate `expr` at a moment; a selection such as `x[1m]` gives its samples. Raises
        PrometheusError."""
        found = self._get("query", query=expr, time=f"{time_s:.3f}")
        if found["resultType"] == "scalar":
            moment, value = found["result"]
            return [Series({}, (moment,), (float(value),))]
        samples = found["resultType"] == "matrix"
        return [
            _series(one["metric"], one["values"] if samples else [one["value"]])
            for one in found["result"]
        ]

    def over(self, expr: str, start_s: float, end_s: float, step_s: float) -> list[Series]:
        """Evaluate `expr` every `step_s` from `start_s` to `end_s`. Raises PrometheusError."""
        found = self._get(
            "query_range",
            query=expr,
            start=f"{start_s:.3f}",
            end=f"{end_s:.3f}",
            step=f"{step_s:.3f}",
        )
        return [_series(one["metric"], one["values"]) for one in found["result"]]

    def ready(self) -> bool:
        """Whether it answers queries."""
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=_TIMEOUT_S):
                return True
        except OSError:
            return False

    def _get(self, what: str, **parameters: str) -> Any:
        url = f"{self._url}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            reason = json.load(error).get("error", error.reason)
            raise PrometheusError(f"{parameters['query']}: {reason}") from error
        except OSError as error:
            raise PrometheusError(f"{self._url} does not answer: {error}") from error


def _series(labels: Mapping[str, str], pairs: Sequence[Sequence[Any]]) -> Series:
    return Series(
        labels, tuple(float(t) for t, _ in pairs), tuple(float(value) for _, value in pairs)
    )


def has_numbers(found: Sequence[Series]) -> bool:
    """Whether there are values, and each is a number."""
    return bool(found) and not any(math.isnan(v) for series in found for v in series.values)


CONFIG = """\
global:
  scrape_interval: {every_s}s
  scrape_timeout: {every_s}s
  evaluation_interval: {every_s}s
rule_files: [{rules}]
scrape_configs:
  - job_name: disagmoe
    file_sd_configs:
      - files: ['{targets}']
        refresh_interval: 1s
"""


@contextmanager
def own_prometheus(
    folder: Path, targets: Path, rules: Sequence[Path], every_s: int
) -> Iterator[Prometheus]:
    """Start a Prometheus with its data in `folder`, on loopback, that scrapes the `targets` that
    this file will list; end it.

    Raises:
        ConfigError: it is not installed.
        PrometheusError: it does not start.
    """
    if shutil.which("prometheus") is None:
        raise ConfigError("prometheus is not installed; on Debian: apt-get install prometheus")
    config, log = folder / "prometheus.yml", folder / "prometheus.log"
    names = ", ".join(f"'{path.resolve()}'" for path in rules)
    config.write_text(CONFIG.format(every_s=every_s, rules=names, targets=targets.resolve()))
    port = _free_port()
    command = [
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            server = Prometheus(f"http://127.0.0.1:{port}")
            _wait_until_ready(server, process, log)
            yield server
        finally:
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_until_ready(server: Prometheus, process: subprocess.Popen[bytes], log: Path) -> None:
    end_s = time.monotonic() + _START_S
    while not server.ready():
        if process.poll() is not None or time.monotonic() > end_s:
            lines = log.read_text(encoding="utf-8").splitlines()
            wrong = [line for line in lines if "level=error" in line.lower()]
            raise PrometheusError(
                "\n".join(["prometheus does not start:", *(wrong or lines)[-_LOG_LINES:]])
            )
        time.sleep(_POLL_S)


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
