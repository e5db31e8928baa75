"""Versions against the oldest that do."""

import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from disagmoe.doctor.finding import Finding
from disagmoe.doctor.versions import OLDEST, version_findings

ROOT = Path(__file__).resolve().parents[3]
NEW = dict.fromkeys(OLDEST, "99.1.0+cpu")


def findings(versions: dict[str, str]) -> dict[str, Finding]:
    def version_of(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    return {finding.subject: finding for finding in version_findings(version_of)}


def test_the_oldest_are_those_of_the_package() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        asked = tomllib.load(file)["project"]["dependencies"]
    plain = [text.replace("[default]", "").split(">=") for text in asked]
    assert {name: version.split(",")[0] for name, version in plain} == OLDEST


def test_fitting_versions_are_listed() -> None:
    found = findings(NEW)
    assert {finding.level for finding in found.values()} == {"ok"}
    assert list(found) == ["disagmoe", "torch", "ray", "other packages"]
    assert found["torch"].found == "99.1.0+cpu"
    assert found["other packages"].found.startswith("pyarrow 99.1.0+cpu, prometheus-client ")


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (
            {"torch": "2.8.1+cu128"},
            Finding(
                subject="torch",
                level="problem",
                found="2.8.1+cu128 is too old",
                advice="pip install 'torch>=2.9', the same version on all nodes",
            ),
        ),
        (
            {"ray": None},
            Finding(
                subject="ray",
                level="problem",
                found="is not installed",
                advice="pip install 'ray[default]>=2.49', the same version on all nodes",
            ),
        ),
    ],
    ids=["old", "missing"],
)
def test_others_are_problems(change: dict[str, str | None], finding: Finding) -> None:
    versions = {name: version for name, version in (NEW | change).items() if version is not None}
    assert findings(versions)[finding.subject] == finding


def test_ten_is_more_than_nine() -> None:
    assert findings(NEW | {"torch": "2.10"})["torch"].level == "ok"
