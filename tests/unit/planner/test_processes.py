"""A map on several processes, against the same on one."""

import math
import os

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


def test_one_process_is_this_one() -> None:
    with processes(1) as each:
        assert each(who, range(2)) == [os.getpid()] * 2
