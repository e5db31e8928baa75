"""Environment variables of the processes of a Ray that we start, and of this one meanwhile."""

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
import ray._raylet

import disagmoe


def ray_variables(threads: int) -> dict[str, str]:
    """Return the environment of all processes of one Ray, each computing with `threads` threads
    unless it chooses otherwise; with a token of its own, which nobody else knows."""
    root = str(Path(disagmoe.__file__).resolve().parents[1])
    inherited = os.environ.get("PYTHONPATH")
    return {
        # the package as this process has it, installed or not
        "PYTHONPATH": root if not inherited else f"{root}{os.pathsep}{inherited}",
        "OMP_NUM_THREADS": str(threads),
        "RAY_USAGE_STATS_ENABLED": "0",
        # other users of this machine reach loopback, too
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set `variables` in the block, in this process and for the Ray library in it."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    reread_environment()
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def reread_environment() -> None:
    """Make the Ray library of this process forget mode and token that it has read before."""
    raylet: Any = ray._raylet  # its stubs lack these two
    raylet.Config.initialize("")
    loader = getattr(raylet, "AuthenticationTokenLoader", None)  # Ray 2.49 or newer
    if loader is not None:
        loader.instance().reset_cache()
