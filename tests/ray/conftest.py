"""Runs of `disagmoe train` as processes of their own, on a small model and prepared text."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray  # noqa: F401 - makes its own copy of psutil importable

# isort: split
import psutil

ROOT = Path(__file__).resolve().parents[2]

SMALL = """
name = "small"
[model]
family = "qwen3_moe"
vocab_size = 257
hidden = 32
layers = 2
heads = 4
kv_heads = 2
head_dim = 8
experts = 5
top_k = 2
expert_width = 16
[parallel]
attention_workers = 2
expert_workers = 2
micro_batch_size = 3
[train]
steps = 24
global_batch_size = 8
sequence_length = 32
[train.lr_schedule]
kind = "constant"
[train.loss]
aux_coef = 0.01
z_coef = 1e-3
[train.eval]
every = 10
sequences = 8
[data]
paths = ["{data}"]
"""


def in_checkout() -> dict[str, str]:
    """Environment of a process that finds the package in this checkout, installed or not."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="session")
def small_config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config of four workers on prepared text."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "text").mkdir()
    for i in range(40):
        lines = (f"line {j} of {i} says {i * j} {'again ' * (j % 7)}\n" for j in range(12))
        (folder / "text" / f"{i:02d}.txt").write_text("".join(lines))
    command = ["-m", "disagmoe", "data", "prepare", "--tokenizer", "bytes", "--processes", "1"]
    command += ["--input", str(folder / "text" / "*.txt"), "--out", str(folder / "data")]
    subprocess.run(
        [sys.executable, *command], env=in_checkout(), cwd=folder, check=True, timeout=100
    )
    config = folder / "small.toml"
    config.write_text(SMALL.format(data=folder / "data"))
    return config


class Launched:
    """A process under way, leader of its own process group."""

    def __init__(self, arguments: list[str], folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self._out, self._err = folder / "stdout.txt", folder / "stderr.txt"
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                env=in_checkout(),
                cwd=folder,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def stdout(self) -> str:
        """All of it so far."""
        return self._out.read_text()

    @property
    def stderr(self) -> str:
        """All of it so far."""
        return self._err.read_text()

    def wait_for(
        self, pattern: str, timeout_s: float = 150, stream: str = "stderr"
    ) -> re.Match[str]:
        """Wait until `stream` has `pattern`."""
        end = time.monotonic() + timeout_s
        while (match := re.search(pattern, getattr(self, stream))) is None:
            assert self.process.poll() is None, self.stdout + self.stderr
            assert time.monotonic() < end, f"no {pattern!r} in:\n{getattr(self, stream)}"
            time.sleep(0.1)
        return match

    def expect(self, pattern: str) -> None:
        """Fail unless stderr has `pattern`."""
        assert re.search(pattern, self.stderr), self.stderr

    def pid_of(self, worker: str) -> int:
        """Wait until the workers have started; return the process of one."""
        return int(self.wait_for(rf"workers started .*{re.escape(worker)} (\d+)")[1])

    def finish(self, timeout_s: float = 150) -> int:
        """Return the exit code."""
        return self.process.wait(timeout_s)

    def interrupt(self) -> None:
        """Press Ctrl-C: the terminal sends SIGINT to the whole process group."""
        os.killpg(self.process.pid, signal.SIGINT)


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launched]]:
    """Start `python ARGUMENTS...`; what still runs at the end of the test is killed."""
    started: list[Launched] = []

    def start(*arguments: str | Path) -> Launched:
        launched = Launched([str(item) for item in arguments], tmp_path / f"process{len(started)}")
        started.append(launched)
        return launched

    yield start
    for launched in started:
        if launched.process.poll() is None:
            for child in psutil.Process(launched.process.pid).children(recursive=True):
                child.kill()
            launched.process.kill()
            launched.process.wait()


@pytest.fixture
def train(launch: Callable[..., Launched], small_config: Path) -> Callable[..., Launched]:
    """Start `python -m disagmoe train` on the small config."""

    def start(*arguments: str | Path) -> Launched:
        return launch("-m", "disagmoe", "train", "--config", small_config, *arguments)

    return start


@pytest.fixture
def leftovers(ray_tmpdir: str) -> Callable[[], list[str]]:
    """What runs of one test have left: processes of theirs, and temporary files.

    A process that was there before the test is another test's, such as the resource tracker that
    multiprocessing keeps until the session ends. One that a run started ends by itself, a moment
    after the run: it waits for the end of a pipe that the run's last process held.
    """
    before = {process.pid for process in psutil.process_iter()}

    def look() -> list[str]:
        found = [str(path) for path in Path(ray_tmpdir).iterdir()]
        for process in psutil.process_iter():
            try:
                if process.pid in before:
                    continue
                if process.environ().get("RAY_TMPDIR") == ray_tmpdir:
                    found.append(" ".join(process.cmdline()))
            except psutil.Error:
                continue
        return found

    def find() -> list[str]:
        deadline = time.monotonic() + 5
        while (found := look()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found

    return find
