"""What all tests share: what a marker needs, quiet threads, repeatable hypothesis, a private Ray.

`DISAGMOE_TESTS_REQUIRE="hf net"` turns the skips of these markers into failures, so that a machine
that is meant to have everything cannot pass by skipping.
"""

import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("disagmoe", derandomize=True, deadline=None, database=None)
settings.load_profile("disagmoe")

# Read by torch, OpenBLAS and OpenMP when they load, here and in every process that a test starts.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def _no_transformers() -> str | None:
    if importlib.util.find_spec("transformers") is None:
        return "Transformers is not installed (pip install 'disagmoe[hf]')"
    return None


def _no_network_tools() -> str | None:
    if os.geteuid() != 0:
        return "network namespaces need root"
    absent = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if absent:
        return f"{' and '.join(absent)} not found (apt-get install iproute2)"
    if subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True).returncode:
        return "this machine forbids network namespaces"
    return None


def _no_prometheus() -> str | None:
    absent = [tool for tool in ("prometheus", "promtool") if shutil.which(tool) is None]
    return f"{' and '.join(absent)} not found (apt-get install prometheus)" if absent else None


def _no_browser() -> str | None:
    if shutil.which("chromium") is None:
        return "chromium not found (apt-get install chromium)"
    return None


def _no_cupy() -> str | None:
    if importlib.util.find_spec("cupy") is None:
        return "cupy is not installed (make test-cupy)"
    return None


def _no_cuda() -> str | None:
    import torch  # slow to load, and only these tests need it here

    return None if torch.cuda.is_available() else "torch finds no CUDA device"


WHY_NOT = {
    "hf": _no_transformers,
    "net": _no_network_tools,
    "prometheus": _no_prometheus,
    "browser": _no_browser,
    "gpu": _no_cuda,
    "cupy": _no_cupy,
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flag of tests/golden; pytest reads options from this file alone."""
    parser.addoption("--regen", action="store_true", help="rewrite the golden files")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose marker asks for what this machine lacks, and say what that is."""
    required = os.environ.get("DISAGMOE_TESTS_REQUIRE", "").split()
    for marker, why_not in WHY_NOT.items():
        if item.get_closest_marker(marker) is None:
            continue
        reason = why_not()
        if reason and marker in required:
            pytest.fail(f"{marker} tests must run here, but {reason}")
        if reason:
            pytest.skip(reason)


@pytest.fixture(scope="session", autouse=True)
def ray_tmpdir() -> Iterator[str]:
    """A directory for the Ray of these tests alone, so that two test runs do not meet, nor a Ray
    that is there for something else.

    It is short, because the path of a Unix socket in it may have 107 bytes at most.
    """
    path = tempfile.mkdtemp(prefix="dm", dir="/tmp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", path)
        patch.delenv("RAY_ADDRESS", raising=False)
        yield path
    shutil.rmtree(path, ignore_errors=True)
