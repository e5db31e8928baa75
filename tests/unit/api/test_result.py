"""`result.json` there and back."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from disagmoe.api.result import Result, RunFailedError, finite
from disagmoe.api.tally import Tally
from disagmoe.errors import ConfigError
from tests.unit.api.runs import started, step


@pytest.fixture
def result(tmp_path: Path) -> Result:
    tally = Tally()
    tally.add(started())
    tally.add(step(0))
    return tally.result(
        "failed", first_error="F0.0 died", peak_memory_total_bytes=7, elapsed_s=9.0, path=tmp_path
    )


def test_it_loads_as_it_was_written(result: Result, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(result.to_json())
    assert Result.load(tmp_path) == result


def test_it_has_the_keys_that_scripts_rely_on(result: Result) -> None:
    assert json.loads(result.to_json()).keys() >= {
        "status",
        "steps",
        "first_loss",
        "last_loss",
        "tokens_per_s",
        "step_s",
        "compute_share",
        "shares",
        "channel_bytes",
        "peak_memory_bytes",
        "eval_loss",
        "mfu",
        "placement",
        "versions",
        "restarts",
        "first_error",
        "checkpoint",
    }


def test_numbers_that_json_cannot_say_are_null(result: Result) -> None:
    broken = replace(result, last_loss=float("nan"), first_loss=float("inf"))
    values = json.loads(broken.to_json())
    assert (values["last_loss"], values["first_loss"]) == (None, None)
    assert finite({"a": [float("-inf"), 1.5, (2, "x")]}) == {"a": [None, 1.5, [2, "x"]]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"holds no result\.json; it appears when a run ends"),
        ("{", r"result\.json is not JSON"),
        ('{"status": "ok"}', "is not the result of a run of this version"),
        ("[1]", "is not the result of a run of this version"),
    ],
)
def test_what_is_no_result_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "result.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        Result.load(tmp_path)


def test_the_error_carries_the_result(result: Result) -> None:
    error = RunFailedError(result)
    assert str(error) == "F0.0 died"
    assert error.result is result
