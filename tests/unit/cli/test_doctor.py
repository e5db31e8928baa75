"""`disagmoe doctor` around findings that are given."""

import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from disagmoe.cli.main import app
from disagmoe.doctor import examine, versions
from disagmoe.doctor.finding import Finding
from disagmoe.errors import ConfigError

FINE = Finding(subject="torch", level="ok", found="2.13.0")
BAD = Finding(subject="this run", level="problem", found="no place\n  at all", advice="start nodes")


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """What is found, after a version that fits."""
    given: list[Finding] = []

    def findings(*_: object, gpu: bool) -> Iterator[Finding]:
        yield from given

    monkeypatch.setattr(versions, "version_findings", lambda: iter([FINE]))
    monkeypatch.setattr(examine, "examine", findings)
    return given


def test_nothing_in_the_way(found: list[Finding]) -> None:
    outcome = CliRunner().invoke(app, ["doctor"])
    assert (outcome.exit_code, outcome.stdout) == (0, "ok       torch: 2.13.0\n")


def test_a_problem_and_what_to_do(found: list[Finding]) -> None:
    found.append(BAD)
    outcome = CliRunner().invoke(app, ["doctor"])
    assert outcome.exit_code == 1
    assert outcome.stdout == (
        "ok       torch: 2.13.0\n"
        "problem  this run: no place\n"
        "           at all\n"
        "         -> start nodes\n"
    )


def test_json_is_one_object(found: list[Finding]) -> None:
    found.append(BAD)
    outcome = CliRunner().invoke(app, ["doctor", "--json"])
    assert outcome.exit_code == 1
    assert json.loads(outcome.stdout) == {
        "ok": False,
        "findings": [
            {"subject": "torch", "level": "ok", "found": "2.13.0", "advice": ""},
            {
                "subject": "this run",
                "level": "problem",
                "found": "no place\n  at all",
                "advice": "start nodes",
            },
        ],
    }


def test_what_needs_torch_is_not_asked_where_it_is_missing(
    found: list[Finding], monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = Finding(subject="torch", level="problem", found="is not installed", advice="get it")
    monkeypatch.setattr(versions, "version_findings", lambda: iter([missing]))
    found.append(BAD)
    outcome = CliRunner().invoke(app, ["doctor"])
    assert outcome.exit_code == 1
    assert outcome.stdout == "problem  torch: is not installed\n         -> get it\n"


def test_settings_need_a_config(found: list[Finding]) -> None:
    outcome = CliRunner().invoke(app, ["doctor", "--set", "train.steps=3"])
    assert outcome.exit_code == 2
    assert "--set changes settings of --config, which is not given" in " ".join(
        outcome.stderr.replace("\u2502", " ").split()
    )


def test_an_address_of_another_kind_is_refused(found: list[Finding]) -> None:
    outcome = CliRunner().invoke(app, ["doctor", "--address", "http://head:8265"])
    assert isinstance(outcome.exception, ConfigError)
    assert str(outcome.exception).startswith(
        'cluster.address = "http://head:8265"; expected HOST:PORT, "auto", "local" or ""'
    )
