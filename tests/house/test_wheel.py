"""What a built wheel holds: the package with its two linked folders, and no other name."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOT_SOURCE = (".git", ".venv", "runs", "dist", "__pycache__", ".*_cache", ".hypothesis")


def build(source: Path, kind: str, out: Path) -> Path:
    """Build a `wheel` or `sdist` of `source` without network; return the one file built."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", out]
    result = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stdout + result.stderr
    (built,) = out.iterdir()
    return built


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the source tree, so that a build leaves nothing in the checkout."""
    copy = tmp_path_factory.mktemp("build") / "checkout"
    shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(*NOT_SOURCE))
    return copy


@pytest.fixture(scope="module")
def sdist_checkout(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What unpacking the sdist gives."""
    unpacked = tmp_path_factory.mktemp("sdist")
    with tarfile.open(build(checkout, "sdist", unpacked / "dist")) as archive:
        # Python before 3.11.4 has no filters, and 3.12 warns without one.
        safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(unpacked, **safely)
    (folder,) = (path for path in unpacked.iterdir() if path.name != "dist")
    return folder


def package_files(checkout: Path) -> set[str]:
    """Every file under `disagmoe/`, by real content: the two links count as folders."""
    linked = {"actors", "cluster"}
    folders = [checkout / "disagmoe", *(checkout / name for name in linked)]
    names = set()
    for folder in folders:
        prefix = Path("disagmoe") / folder.name if folder.name in linked else Path("disagmoe")
        paths = (path for path in folder.rglob("*") if path.is_file())
        names |= {str(prefix / path.relative_to(folder)) for path in paths}
    return names


@pytest.mark.parametrize("origin", ["checkout", "sdist_checkout"])
def test_wheel_holds_the_package_and_nothing_else(
    origin: str, checkout: Path, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    wheel = build(request.getfixturevalue(origin), "wheel", tmp_path / "dist")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    code = {name for name in names if name.startswith("disagmoe/")}
    expected = package_files(checkout)
    assert {"disagmoe/actors/__init__.py", "disagmoe/cluster/__init__.py"} <= expected
    assert code == expected
    rest = {name.partition("/")[0] for name in names - code}
    stem = "-".join(wheel.name.split("-")[:2])
    assert rest - {f"{stem}.data"} == {f"{stem}.dist-info"}
    shared = {name for name in names if ".data/" in name}
    prefix = f"{stem}.data/data/share/disagmoe/"
    assert shared == {
        prefix + str(path.relative_to(checkout))
        for folder in ("configs", "dashboards")
        for path in (checkout / folder).rglob("*")
        if path.is_file()
    }
