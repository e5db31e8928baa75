"""Which imports are legal, and that each of our modules has one name only."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run_python(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, timeout=100
    )


@pytest.mark.parametrize("name", ["actors", "cluster"])
def test_the_real_folder_is_refused_under_its_bare_name(name: str) -> None:
    result = run_python("-c", f"import {name}")
    assert result.returncode == 1
    message = f"ImportError: import this package as 'disagmoe.{name}', not '{name}'"
    assert result.stderr.splitlines()[-1] == message


@pytest.mark.parametrize("name", ["actors", "cluster"])
def test_the_folders_are_relative_links_inside_the_package(name: str) -> None:
    assert (ROOT / "disagmoe" / name).readlink() == Path("..") / name


PLANTED = {
    "a lower layer imports a higher one": (
        "disagmoe/config/planted.py",
        "import disagmoe.runtime",
        "One direction, top to bottom BROKEN",
    ),
    "siblings import each other": (
        "disagmoe/transport/planted.py",
        "import disagmoe.optim",
        "One direction, top to bottom BROKEN",
    ),
    "a package without a place": (
        "disagmoe/utils/__init__.py",
        "",
        "disagmoe.utils",
    ),
    "the planning half imports torch": (
        "disagmoe/schedule/planted.py",
        "import torch",
        "The planning half is plain Python BROKEN",
    ),
    "the runtime imports Ray": (
        "disagmoe/runtime/planted.py",
        "import ray",
        "Only actors and cluster know Ray BROKEN",
    ),
    "an actor imports cupy": (
        "actors/planted.py",
        "import cupy",
        "Only transport.nccl_library knows cupy BROKEN",
    ),
}


@pytest.mark.parametrize(("file", "text", "complaint"), PLANTED.values(), ids=PLANTED.keys())
def test_import_contracts_catch(file: str, text: str, complaint: str, tmp_path: Path) -> None:
    for name in ("disagmoe", "actors", "cluster"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    planted = tmp_path / file
    planted.parent.mkdir(exist_ok=True)
    planted.write_text(f'"""Planted by a test."""\n{text}\n', encoding="ascii")
    lint = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    result = run_python("-c", lint, "--no-cache", "--no-logo", cwd=tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    assert complaint in result.stdout + result.stderr
