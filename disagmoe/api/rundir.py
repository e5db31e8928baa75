"""The run directory: claimed once, and every file in it whole."""

import contextlib
import fcntl
import json
import mmap
import os
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from disagmoe.actors.calls import evaluates_after
from disagmoe.actors.events import EvalResult, StepResult
from disagmoe.api.result import RESULT_FILE, Result, finite
from disagmoe.cluster.join import in_ray_job
from disagmoe.config.run import RunConfig
from disagmoe.config.tomlwrite import dump_toml
from disagmoe.errors import ConfigError

CONFIG_FILE = "config.toml"
METRICS_FILE = "metrics.jsonl"


def run_id(run_dir: Path) -> str:
    """Return a name for one run in `run_dir`, which no other run has: it is part of all names in
    Ray."""
    words = re.sub(r"[^A-Za-z0-9._-]+", "-", run_dir.name).strip("-") or "run"
    return f"{words}-{secrets.token_hex(4)}"


def default_run_dir(name: str, now: time.struct_time) -> Path:
    """Where a run goes that is not told: `runs/NAME-DATE-TIME` below the current directory."""
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S', now)}"


def check_free(path: Path) -> None:
    """Raise ConfigError unless `path` is an empty directory or can become one."""
    if path.is_dir():
        names = sorted(entry.name for entry in path.iterdir())
        if CONFIG_FILE in names or RESULT_FILE in names:
            raise ConfigError(
                f"{path} already holds a run; go on with it by --resume {path}, name another "
                "directory with --run-dir, or remove it"
            )
        if names:
            raise ConfigError(
                f"{path} is not empty (it holds {', '.join(names[:3])}); "
                "name a new or an empty directory with --run-dir"
            )
    elif path.exists():
        raise ConfigError(f"{path} is a file; name a directory with --run-dir")


def check_folder(path: Path, environ: Mapping[str, str]) -> None:
    """Raise ConfigError for a `path` as the user gave it that is a URI, which a folder would be
    made of, or relative in a Ray job, whose current directory is a copy that goes with the job and
    is another one on each node."""
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]+:", path.parts[0] if path.parts else ""):
        raise ConfigError(
            f"the run directory {path} looks like a URI; name a folder that all nodes see. URIs "
            "are for data"
        )
    if in_ray_job(environ) and not path.is_absolute():
        raise ConfigError(
            f"the run directory {path} is relative, but this is a Ray job: its current directory "
            "is Ray's copy of --working-dir, which goes with the job; give an absolute path on "
            f"storage that all nodes share, such as --run-dir /mnt/shared/{path}"
        )


def holds_run(path: Path) -> bool:
    """Whether `path` is the directory of a run."""
    return (path / CONFIG_FILE).is_file()


class RunDir:
    """A run directory that belongs to one run, for as long as its metrics are open."""

    def __init__(self, path: Path, config: RunConfig) -> None:
        """Make `path` and write the resolved `config` to it.

        Raises:
            ConfigError: the directory holds something, or cannot be written.
        """
        check_free(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            (path / "logs").mkdir()
            _write_whole(path / CONFIG_FILE, dump_toml(config))
            self.metrics = MetricsLog(path / METRICS_FILE, config)
        except FileExistsError:
            raise ConfigError(f"{path} was taken by another run just now") from None
        except OSError as error:
            raise ConfigError(f"cannot make the run directory {path}: {error.strerror}") from error
        self.path = path.resolve()
        self.news: list[str] = []
        """What was done to what the run had written before."""

    @classmethod
    def reopen(cls, path: Path, config: RunConfig, step: int) -> "RunDir":
        """Go on in the directory of a run, from `step`: its metrics from there on are cut off, its
        result is gone until the next one, its config is replaced.

        Raises:
            ConfigError: another process is running it, or it cannot be written.
        """
        self = cls.__new__(cls)
        try:
            (path / "logs").mkdir(exist_ok=True)
            self.metrics = MetricsLog(path / METRICS_FILE, config)
            self.news = self.metrics.cut(step)
            self.path = path.resolve()
            (path / RESULT_FILE).unlink(missing_ok=True)
            self.write_config(config)
        except OSError as error:
            raise ConfigError(f"cannot go on in {path}: {error.strerror}") from error
        return self

    def write_config(self, config: RunConfig) -> None:
        """Replace `config.toml`, once the run goes on with other settings."""
        _write_whole(self.path / CONFIG_FILE, dump_toml(config))

    def write_result(self, result: Result) -> None:
        """Write `result.json`."""
        _write_whole(self.path / RESULT_FILE, result.to_json() + "\n")

    def close(self) -> None:
        """Let another process have it."""
        self.metrics.close()


class MetricsLog:
    """`metrics.jsonl`: one line per step, whole and on disk before the next step is shown.

    The line of a step that an evaluation follows waits for it and holds its loss. The open file is
    locked: who writes it is the one process that runs the run.
    """

    def __init__(self, path: Path, config: RunConfig) -> None:
        """Open the file, or make it. Raises ConfigError where another process has it open, OSError
        where it cannot be written."""
        self._path = path
        self._file = path.open("a", encoding="utf-8")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise ConfigError(
                f"another process is running the run in {path.parent}; stop it first, or name "
                "another directory with --run-dir"
            ) from None
        self._train = config.train
        self._held: dict[str, object] | None = None

    def cut(self, step: int) -> list[str]:
        """Cut off the lines of `step` and later ones, and what was written in part; say what has
        been cut off and what is missing before. Steps of the file ascend."""
        end, cut, last = _end_before(self._path, step)
        self._file.truncate(end)
        news = []
        if cut:
            lines = "line" if cut == 1 else "lines"
            news.append(
                f"{self._path.name}: {cut} {lines} after step {step} cut off, which had been done "
                "but not saved, and are done again"
            )
        if last + 1 < step:
            news.append(
                f"{self._path.name}: has no line of steps {last + 2} to {step}, which were done by "
                "another run or just before this one ended"
            )
        return news

    def step(self, result: StepResult) -> None:
        """Log a step."""
        self._held = asdict(result)
        if not evaluates_after(result.step, self._train):
            self._release()

    def evaluation(self, result: EvalResult) -> None:
        """Log the evaluation after the last step."""
        if self._held is not None:
            self._held |= {"eval_loss": result.loss, "eval_s": result.elapsed_s}
        self._release()

    def _release(self) -> None:
        line, self._held = self._held, None
        if line is not None:
            self._file.write(json.dumps(finite(line), allow_nan=False) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Write what waits and close the file."""
        self._release()
        self._file.close()


def _end_before(path: Path, step: int) -> tuple[int, int, int]:
    """Return where the last whole line of a step before `step` ends, how many lines follow it, and
    its step, -1 without one. Reads backwards, as a file of metrics grows long."""
    end, cut = path.stat().st_size, 0
    if end == 0:
        return 0, 0, -1
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        while end > 0:
            start = text.rfind(b"\n", 0, end - 1) + 1
            found = _step_of(text[start:end])
            if found is not None and found < step:
                return end, cut, found
            end, cut = start, cut + 1
    return 0, cut, -1


def _step_of(line: bytes) -> int | None:
    """The step of a whole line of metrics, None for what was written in part."""
    try:
        return int(json.loads(line)["step"]) if line.endswith(b"\n") else None
    except (ValueError, KeyError, TypeError):
        return None


def _write_whole(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".partial")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
