"""`disagmoe train` around a trainer that is told what happens."""

import signal
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner
from typer.testing import Result as Outcome

from disagmoe import api
from disagmoe.api import Callback, Result, RunConfig, RunFailedError
from disagmoe.api.tally import Tally
from disagmoe.cli.main import app
from disagmoe.errors import ConfigError
from tests.unit.checkpoint.saved import small

ROOT = Path(__file__).resolve().parents[3]
TINY = str(ROOT / "configs/tiny.toml")


def result(status: str = "ok", error: str | None = None) -> Result:
    return Tally().result(
        status,  # type: ignore[arg-type]
        first_error=error,
        peak_memory_total_bytes=0,
        elapsed_s=1.0,
        path=Path("/run"),
    )


class Trainers:
    """Stands for the class Trainer: keeps what it was given, and ends as told."""

    def __init__(self, end: Callable[[], Result]) -> None:
        self.end = end
        self.config: RunConfig | None = None
        self.run_dir: Path | None = None
        self.resume: str | None = None
        self.callbacks: Sequence[Callback] = ()

    def __call__(
        self,
        config: RunConfig,
        *,
        run_dir: Path | None,
        resume: str | None,
        callbacks: Sequence[Callback],
    ) -> "Trainers":
        self.config, self.run_dir, self.callbacks = config, run_dir, callbacks
        self.resume = resume
        return self

    def fit(self) -> Result:
        ended = self.end()
        for callback in self.callbacks:
            callback.on_end(ended)
        return ended


def train(
    monkeypatch: pytest.MonkeyPatch, end: Callable[[], Result], *arguments: str
) -> tuple[Outcome, Trainers]:
    return train_with(monkeypatch, end, "--config", TINY, *arguments)


def train_with(
    monkeypatch: pytest.MonkeyPatch, end: Callable[[], Result], *arguments: str
) -> tuple[Outcome, Trainers]:
    trainers = Trainers(end)
    monkeypatch.setattr(api, "Trainer", trainers)
    return CliRunner().invoke(app, ["train", *arguments]), trainers


def test_config_settings_and_directory_reach_the_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome, trainers = train(
        monkeypatch, result, "--set", "train.steps=9", "--set", "train.seed=4", "--run-dir", "/run"
    )
    assert outcome.exit_code == 0, outcome.output
    assert trainers.config == RunConfig.load(TINY, ["train.steps=9", "train.seed=4"])
    assert trainers.run_dir == Path("/run")
    assert outcome.stdout == ""
    assert outcome.stderr.splitlines()[0] == "ok: 0 steps in 1.0 s"


def test_the_address_of_a_ray_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    _, trainers = train(monkeypatch, result, "--address", "10.0.0.1:6379")
    assert trainers.config is not None
    assert trainers.config.cluster.address == "10.0.0.1:6379"
    outcome, _ = train(monkeypatch, result, "--address", "http://head:8265")
    assert isinstance(outcome.exception, ConfigError)
    assert str(outcome.exception).startswith(
        f'{TINY}: cluster.address = "http://head:8265"; expected HOST:PORT, "auto", "local" or ""'
    )


def test_json_prints_the_result_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome, trainers = train(monkeypatch, result, "--json")
    assert outcome.stdout == result().to_json() + "\n"
    assert trainers.run_dir is None


def test_a_config_may_be_that_of_the_checkpoint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small(tmp_path, 3)
    outcome, trainers = train_with(
        monkeypatch, result, "--resume", f"{tmp_path}@3", "--set", "train.steps=9"
    )
    assert outcome.exit_code == 0, outcome.output
    assert trainers.config == RunConfig.load(TINY, ["train.steps=9"])
    assert trainers.resume == f"{tmp_path}@3"
    outcome, trainers = train(monkeypatch, result, "--resume", "auto", "--run-dir", "/run")
    assert (trainers.resume, trainers.run_dir) == ("auto", Path("/run"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give --config FILE, or --resume D to go on with a checkpoint's"),
        (["--resume", "auto"], "--resume auto may find no checkpoint to begin with; give --config"),
        (["--resume", "/nowhere@4"], "/nowhere: has no complete checkpoint step-4; it has none"),
    ],
)
def test_without_any_config_nothing_starts(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    outcome, trainers = train_with(monkeypatch, result, *arguments)
    said = " ".join(f"{outcome.stderr} {outcome.exception}".replace("\u2502", "").split())
    assert message in said
    assert trainers.config is None


def test_warnings_of_the_config_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome, _ = train(monkeypatch, result, "--set", "parallel.attention_workers=4")
    assert outcome.stderr.startswith("warning: 2 of 4 attention workers per group (50 %) are idle")


def test_a_config_that_cannot_run_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome, trainers = train(monkeypatch, result, "--set", "train.stepz=9")
    assert isinstance(outcome.exception, ConfigError)
    assert trainers.config is None


def test_a_failed_run_is_the_callers_error(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = RunFailedError(result("failed", "F0.0 died"))

    def end() -> Result:
        raise failed

    outcome, _ = train(monkeypatch, end)
    assert outcome.exception is failed


def test_ctrl_c_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def end() -> Result:
        raise KeyboardInterrupt

    outcome, _ = train(monkeypatch, end)
    assert outcome.exit_code == 130


def test_sigterm_exits_with_143(monkeypatch: pytest.MonkeyPatch) -> None:
    def end() -> Result:
        signal.raise_signal(signal.SIGTERM)
        return result()

    outcome, _ = train(monkeypatch, end)
    assert outcome.exit_code == 143


def test_the_installed_command_is_the_module() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        scripts = tomllib.load(file)["project"]["scripts"]
    assert scripts == {"disagmoe": "disagmoe.cli.main:main"}
    assert "from disagmoe.cli.main import main" in (ROOT / "disagmoe/__main__.py").read_text()


def test_a_run_for_a_cluster_is_refused_where_none_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    path = ROOT / "configs/runs/qwen3-235b-h800x16.toml"
    outcome = CliRunner().invoke(
        app, ["train", "--config", str(path), "--run-dir", str(tmp_path / "run")]
    )
    assert isinstance(outcome.exception, ConfigError)
    assert 'cluster.mode = "cluster" joins a Ray cluster and never starts one; name it with' in str(
        outcome.exception
    )
    assert list(tmp_path.iterdir()) == []


def test_what_can_only_be_planned_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    sets = ["--set", "model.family=glm4_moe", "--run-dir", str(tmp_path / "run")]
    outcome = CliRunner().invoke(app, ["train", "--config", str(TINY), *sets])
    assert isinstance(outcome.exception, ConfigError)
    assert 'model.family = "glm4_moe" can be planned and simulated' in str(outcome.exception)
    assert list(tmp_path.iterdir()) == []
