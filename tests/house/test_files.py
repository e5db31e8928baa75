"""House rules on files that no linter checks, and lock files that fit the declared dependencies."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAX_LINES = 600
SOURCE_FOLDERS = ("disagmoe", "actors", "cluster", "scripts", "tests", "docs")
SOURCES = sorted(path for folder in SOURCE_FOLDERS for path in (ROOT / folder).rglob("*.py"))
PIN = re.compile(r"([a-z0-9]+(?:-[a-z0-9]+)*)==((?:[0-9]+!)?[0-9][0-9a-z.]*)")


def test_sources_are_short() -> None:
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    assert {path: count for path, count in lines.items() if count > MAX_LINES} == {}


def test_sources_are_ascii() -> None:
    assert [path for path in SOURCES if not path.read_bytes().isascii()] == []


def test_no_module_is_a_drawer_for_odds_and_ends() -> None:
    drawers = {"utils", "util", "helpers", "common", "misc"}
    assert [path for path in SOURCES if path.stem in drawers or path.parent.name in drawers] == []


def pins(name: str) -> dict[str, str]:
    """Pinned version by package; every line that is not a comment must be `name==version`."""
    lines = (ROOT / name).read_text(encoding="ascii").splitlines()
    matches = [PIN.fullmatch(line) for line in lines if not line.startswith("#")]
    assert None not in matches
    return dict(match.groups() for match in matches if match is not None)


def declared(requirements: list[str]) -> set[str]:
    """Normalised names of requirements such as `ray[default]>=2.49`."""
    names = (re.match(r"[A-Za-z0-9._-]+", text) for text in requirements)
    return {re.sub(r"[-_.]+", "-", match.group()).lower() for match in names if match is not None}


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-dev.lock"])
def test_lock_files_name_no_path_address_or_local_build(name: str) -> None:
    assert len(pins(name)) > 10


def test_lock_files_cover_the_declared_dependencies_once() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        pyproject = tomllib.load(file)
    project = pyproject["project"]
    extras = project["optional-dependencies"]
    runtime, dev = pins("requirements.lock"), pins("requirements-dev.lock")
    needed = declared(project["dependencies"] + pyproject["build-system"]["requires"])
    assert needed - runtime.keys() == set()
    optional = [
        need for name in ("dev", "hf", "dashboards", "tensorboard") for need in extras[name]
    ]
    assert declared(optional) - runtime.keys() - dev.keys() == set()
    assert runtime.keys() & dev.keys() == set()
    assert [pin for pin in runtime if pin.startswith(("nvidia-", "cuda-", "triton"))] == []
