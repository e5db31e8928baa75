"""What a run directory holds of a run, at any moment of it."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disagmoe.config.load import load_run_config
from disagmoe.config.run import RunConfig
from disagmoe.errors import ConfigError
from disagmoe.runtime.measured import one_step
from disagmoe.runtime.trace import TRACE_FILE, WorkerTrace, read_trace

_CONFIG, _METRICS, _RESULT = "config.toml", "metrics.jsonl", "result.json"
_NEEDED = frozenset(
    (
        *("step", "step_s", "tokens", "tokens_per_s", "loss", "grad_norm", "lr", "skipped"),
        *("shares", "expert_load", "expert_variation", "dead_experts", "channel_bytes"),
        *("channel_messages", "peak_memory_bytes", "restarts"),
    )
)
"""What a page is made from in each line of `metrics.jsonl`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """All that a report is made from."""

    path: Path
    config: RunConfig
    config_text: str
    steps: tuple[Mapping[str, Any], ...]
    """Lines of `metrics.jsonl`."""
    result: Mapping[str, Any] | None
    """Content of `result.json`; None while the run goes on."""
    traced: Mapping[str, WorkerTrace] | None
    """The last traced step by worker; None where none was."""

    @property
    def status(self) -> str:
        """How it ended, or `running`."""
        return "running" if self.result is None else str(self.result["status"])


def read_run(path: Path) -> RunData:
    """Read the run directory `path`.

    Raises:
        ConfigError: it holds no run, or files of another version.
    """
    if not (path / _CONFIG).is_file():
        raise ConfigError(f"{path} holds no {_CONFIG}; name the directory of a run")
    config = load_run_config(path / _CONFIG, ())
    return RunData(
        path=path.resolve(),
        config=config,
        config_text=(path / _CONFIG).read_text(encoding="utf-8"),
        steps=tuple(_steps(path / _METRICS)),
        result=_result(path / _RESULT),
        traced=_traced(path),
    )


def _steps(path: Path) -> Iterator[Mapping[str, Any]]:
    if not path.is_file():
        return
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        if not line.endswith("\n"):
            return  # being written
        try:
            step = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{path}, line {number} is not JSON: {error}") from error
        if absent := sorted(_NEEDED - step.keys()):
            raise ConfigError(
                f"{path}, line {number} has no {absent[0]}: another version has written it; make "
                "the report with that one"
            )
        yield step


def _result(path: Path) -> Mapping[str, Any] | None:
    if not path.is_file():
        return None
    try:
        found: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    return found


def _traced(path: Path) -> dict[str, WorkerTrace] | None:
    if not (path / TRACE_FILE).is_file():
        return None
    return one_step(read_trace(path), None)
