"""A map on several processes, against the same on one."""

import math
import os
import time
from pathlib import Path

import pytest

from disagmoe.errors import ConfigError
from disagmoe.planner.processes import processes


def who(_: int) -> int:
    return os.getpid()


def refuse(value: int) -> int:
    raise ConfigError(f"{value} is refused")


def test_several_processes_answer_in_order_and_pass_errors_on() -> None:
    with processes(2) as each:
        assert each(math.sqrt, range(50)) == [math.sqrt(value) for value in range(50)]
        assert os.getpid() not in each(who, range(4))
        with pytest.raises(ConfigError, match=r"^0 is refused$"):
            each(refuse, range(4))


def sleep_or_refuse(seconds: float) -> None:
    if not seconds:
        raise ConfigError("no time at all")
    time.sleep(seconds)


def test_processes_are_ended_in_the_middle_of_their_work() -> None:
    began = time.monotonic()
    pids: list[int] = []

    def work() -> None:
        with processes(2) as each:
            pids.extend(each(who, range(4)))
            each(sleep_or_refuse, [0.0, 60.0])

    with pytest.raises(ConfigError, match=r"^no time at all$"):
        work()
    assert time.monotonic() - began < 30
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_one_process_is_this_one() -> None:
    with processes(1) as each:
        assert each(who, range(2)) == [os.getpid()] * 2
