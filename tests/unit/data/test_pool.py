import os
import signal
import subprocess
import sys
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path

import pytest

from disagmoe.data.pool import map_unordered
from disagmoe.errors import DataError, WorkerError


def adder(amount: int) -> Callable[[int], tuple[int, int]]:
    return lambda job: (job + amount, os.getpid())


def failing(message: str) -> Callable[[int], int]:
    def work(job: int) -> int:
        raise DataError(f"{message} {job}")

    return work


def dying(number: int) -> Callable[[int], int]:
    def work(job: int) -> int:
        os.kill(os.getpid(), number)
        return job

    return work


def test_every_job_is_done_once_in_few_processes() -> None:
    results = list(map_unordered(adder, (10,), list(range(7)), 2))
    assert sorted(map(itemgetter(0), results)) == [10, 11, 12, 13, 14, 15, 16]
    assert 1 <= len({pid for _, pid in results} - {os.getpid()}) <= 2


def test_no_jobs_start_no_process() -> None:
    assert list(map_unordered(failing, ("never",), [], 2)) == []


def test_an_error_of_the_package_is_raised_here() -> None:
    with pytest.raises(DataError, match=r"^cannot do 5$"):
        list(map_unordered(failing, ("cannot do",), [5], 2))


def test_a_killed_process_is_noticed() -> None:
    with pytest.raises(WorkerError, match=r"ended with exit code -9 in the middle of its work"):
        list(map_unordered(dying, (int(signal.SIGKILL),), [1], 1))


SCRIPT = """\
from operator import add
from disagmoe.data.pool import map_unordered
print(list(map_unordered(add, (b"x" * 1_000_000, b""), [1], 1)))
"""


def test_a_script_without_a_guard_ends_and_is_told_why(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert "a process of the pool ended with exit code 1 in the middle of its work" in ended.stderr
    assert (
        'means that it lacks `if __name__ == "__main__":` around what starts the pool'
        in ended.stderr
    )


def test_processes_are_gone_when_the_caller_stops_early() -> None:
    results = map_unordered(adder, (0,), list(range(100)), 1)
    _, pid = next(results)
    results.close()
    assert not Path(f"/proc/{pid}").exists()
