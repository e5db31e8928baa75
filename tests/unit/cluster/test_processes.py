"""Memory and end of processes below this one."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from disagmoe.cluster.processes import (
    PeakMemory,
    children_that_mention,
    end_survivors,
    tree_rss_bytes,
)
from disagmoe.units import MIB

HOLD = "import sys, time; x = bytearray(64 << 20); print('ready', flush=True); time.sleep(60)"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds 64 MiB and ends only when told to."""
    command = [sys.executable, "-c", HOLD, "mark-of-this-test"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_memory_is_that_of_the_process_and_all_below(child: subprocess.Popen[bytes]) -> None:
    of_child = tree_rss_bytes(child.pid)
    assert of_child > 64 * MIB
    assert tree_rss_bytes(os.getpid()) > of_child + 10 * MIB


def test_a_process_that_is_gone_has_no_memory(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    assert tree_rss_bytes(child.pid) == 0


GROW = """
import sys
print("small", flush=True)
sys.stdin.readline()
held = bytearray(96 << 20)
print("large", flush=True)
sys.stdin.readline()
"""


def test_the_peak_outlives_its_cause() -> None:
    # in a process of its own: this one may shrink meanwhile, by what earlier tests have left
    with subprocess.Popen(
        [sys.executable, "-c", GROW], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        with PeakMemory(process.pid, every_s=0.01) as memory:
            before = tree_rss_bytes(process.pid)
            process.stdin.write("grow\n")
            process.stdin.flush()
            process.stdout.readline()
            time.sleep(0.2)
            process.kill()
            process.wait()
            time.sleep(0.1)
    assert tree_rss_bytes(process.pid) == 0
    assert memory.peak_bytes > before + 80 * MIB


def test_children_are_found_by_what_their_command_mentions(
    child: subprocess.Popen[bytes],
) -> None:
    assert [found.pid for found in children_that_mention("mark-of-this-test")] == [child.pid]
    assert children_that_mention("mark-of-another-test") == []


def test_survivors_are_asked_to_end(child: subprocess.Popen[bytes]) -> None:
    found = children_that_mention("mark-of-this-test")
    end_survivors(found, patience_s=30)
    assert [process.wait() for process in found] == [-signal.SIGTERM]


def test_survivors_that_do_not_hear_are_killed(child: subprocess.Popen[bytes]) -> None:
    os.kill(child.pid, signal.SIGSTOP)
    found = children_that_mention("mark-of-this-test")
    end_survivors(found, patience_s=0.05)
    assert [process.wait() for process in found] == [-signal.SIGKILL]
    end_survivors(found, patience_s=0.05)
