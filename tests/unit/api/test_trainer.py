"""The trainer around a session that is told what happens."""

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from disagmoe.actors.events import (
    CheckpointSaved,
    EvalResult,
    Event,
    RunEnded,
    RunPlaced,
    RunResumed,
    RunStarted,
    ScheduleTuned,
    StepResult,
)
from disagmoe.actors.messages import FailureKind, ResumePoint, WorkerFailure
from disagmoe.api import Callback, Result, RunConfig, RunFailedError, Trainer
from disagmoe.api import trainer as trainer_module
from disagmoe.checkpoint.find import Found
from disagmoe.cluster.join import Target
from disagmoe.config.load import override
from disagmoe.costs.flops import model_flops
from disagmoe.data.position import Origin
from disagmoe.errors import CheckpointError, ConfigError, DataError, PlacementError, WorkerError
from disagmoe.storage import Location
from tests.unit.api.runs import evaluation, placed, started, step
from tests.unit.checkpoint.saved import small

ROOT = Path(__file__).resolve().parents[3]
DIED = WorkerFailure(worker="F0.0", kind=FailureKind.DIED, message="F0.0 died", at_s=0)


class FakeSession:
    """Replays `script`: events, and exceptions raised while the next event is waited for."""

    def __init__(self, script: list[Event | BaseException]) -> None:
        self._script = script
        self.stop_requested = False
        self.open = False
        self.given: dict[str, Any] = {}
        self.host = "192.0.2.1"  # of nobody: nothing is served, and no run minds

    def events(self, for_s: float = float("inf")) -> Iterator[Event]:
        while self._script:
            item = self._script.pop(0)
            if isinstance(item, BaseException):
                raise item
            yield item

    def request_stop(self) -> None:
        self.stop_requested = True


class Diary(Callback):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def on_begin(self, config: RunConfig, run_dir: Path) -> None:
        assert (run_dir / "config.toml").exists()
        self.told.append("begin")

    def on_notice(self, text: str) -> None:
        self.told.append(text)

    def on_place(self, placed: RunPlaced) -> None:
        self.told.append("place")

    def on_start(self, started: RunStarted) -> None:
        self.told.append("start")

    def on_step(self, step: StepResult) -> None:
        self.told.append(f"step {step.step}")

    def on_eval(self, evaluation: EvalResult) -> None:
        self.told.append(f"eval {evaluation.step}")

    def on_resumed(self, resumed: RunResumed) -> None:
        self.told.append(f"resumed {resumed.step}")

    def on_checkpoint(self, saved: CheckpointSaved) -> None:
        self.told.append(f"saved {saved.step}")

    def on_tuned(self, tuned: ScheduleTuned) -> None:
        self.told.append("tuned")

    def on_end(self, result: Result) -> None:
        assert Result.load(result.path) == result
        self.told.append(result.status)


class Setting:
    """A trainer whose session follows a script."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.run_dir = folder / "run"
        self.diary = Diary()
        self.session = FakeSession([])
        self._monkeypatch = monkeypatch

    def trainer(
        self,
        *script: Event | BaseException,
        callbacks: tuple = (),
        resume: str | None = None,
        sets: tuple[str, ...] = (),
    ) -> Trainer:
        session = self.session = FakeSession(list(script))

        @contextmanager
        def open_session(
            config: RunConfig,
            run_dir: str,
            target: Target,
            run_id: str,
            say: Callable[[str], None],
            **given: Any,
        ) -> Iterator[FakeSession]:
            assert run_id.startswith("run-")
            say("it begins")
            session.open, session.given = True, given
            try:
                yield session
            finally:
                session.open = False

        self._monkeypatch.setattr(trainer_module, "run_session", open_session)
        self._monkeypatch.setattr(trainer_module, "preflight", lambda config, _: config)
        self._monkeypatch.setattr(trainer_module, "continued", self._continued)
        config = RunConfig.load(ROOT / "configs/tiny.toml", sets)
        chosen = (self.diary, *callbacks)
        return Trainer(config, run_dir=self.run_dir, resume=resume, callbacks=chosen)

    @staticmethod
    def _continued(
        config: RunConfig, found: Found, checkpoints: Location, target: Target
    ) -> tuple[RunConfig, ResumePoint, list[str]]:
        done = found.manifest.done
        point = ResumePoint(
            place=str(found.place), done=done, origin=Origin(done.step), programs_sha256="00"
        )
        return config, point, ["the learning rate is another"]

    @property
    def saved(self) -> Result:
        return Result.load(self.run_dir)

    @property
    def steps(self) -> list[int]:
        lines = (self.run_dir / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line)["step"] for line in lines]


@pytest.fixture
def setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setting:
    return Setting(tmp_path, monkeypatch)


def test_a_run_to_its_end(setting: Setting) -> None:
    script = (placed(), started(), step(0), step(1), evaluation(1), RunEnded(status="ok"))
    result = setting.trainer(*script).fit()
    assert (result.status, result.steps, result.path) == ("ok", 2, str(setting.run_dir))
    assert result.peak_memory_total_bytes > 10**7
    assert setting.saved == result
    assert setting.steps == [0, 1]
    begun = ["begin", "uses a Ray of its own on this machine", "it begins", "place", "start"]
    assert setting.diary.told == [*begun, "step 0", "step 1", "eval 1", "ok"]
    assert result.placement["A0.0"]["host"] == "10.0.0.1"
    assert not setting.session.open


def test_mfu_where_the_peaks_are_known(setting: Setting) -> None:
    peaks = ("metrics.attention_peak_flops=1e6", "metrics.expert_peak_flops=1e6")
    script = (placed(), started(), step(0), step(1), RunEnded(status="ok"))
    result = setting.trainer(*script, sets=peaks).fit()
    model = RunConfig.load(ROOT / "configs/tiny.toml").model
    assert result.mfu == pytest.approx(50 * model_flops(model, 13) / 2e6)
    assert setting.saved == result


def test_a_tuned_config_is_that_of_the_run_directory(setting: Setting) -> None:
    config = override(RunConfig.load(ROOT / "configs/tiny.toml"), ["parallel.costs.rows=0.125"])
    tuned = ScheduleTuned(
        config=config, seconds={}, expert_shares=[], planned_s=1.0, gap=1.0, programs_sha256="11"
    )
    setting.trainer(started(), step(0), tuned, step(1), RunEnded(status="ok")).fit()
    assert setting.diary.told[-4:] == ["step 0", "tuned", "step 1", "ok"]
    assert RunConfig.load(setting.run_dir / "config.toml") == config


def test_a_failed_run_raises_with_its_result(setting: Setting) -> None:
    trainer = setting.trainer(started(), step(0), RunEnded(status="failed", failures=(DIED,)))
    with pytest.raises(RunFailedError, match=r"^F0\.0 died$") as raised:
        trainer.fit()
    assert raised.value.result == setting.saved
    assert (setting.saved.status, setting.saved.first_error) == ("failed", "F0.0 died")
    assert setting.diary.told[-1] == "failed"


def test_a_dead_driver_is_a_failed_run(setting: Setting) -> None:
    trainer = setting.trainer(started(), WorkerError("the driver has died: why"))
    with pytest.raises(RunFailedError, match=r"^the driver has died: why$"):
        trainer.fit()
    assert setting.saved.first_error == "the driver has died: why"


def test_workers_that_cannot_be_placed_keep_their_own_error(setting: Setting) -> None:
    with pytest.raises(PlacementError, match="no room"):
        setting.trainer(PlacementError("no room")).fit()
    assert (setting.saved.status, setting.saved.first_error) == ("failed", "no room")


def test_workers_that_cannot_run_where_they_are_are_not_placed(setting: Setting) -> None:
    unfit = WorkerFailure(
        worker="F0.0", kind=FailureKind.UNFIT, message="F0.0 on 10.0.0.2 sees 0 GPUs", at_s=0
    )
    with pytest.raises(PlacementError, match=r"^F0\.0 on 10\.0\.0\.2 sees 0 GPUs$"):
        setting.trainer(RunEnded(status="failed", failures=(unfit,))).fit()
    assert setting.saved.first_error == "F0.0 on 10.0.0.2 sees 0 GPUs"


def test_a_ray_that_others_use_too_is_named_with_the_name_of_the_run(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def join(target: Target) -> Iterator[Target]:
        assert target == Target("10.0.0.1:6379", "RAY_ADDRESS")
        yield target

    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setattr(trainer_module, "joined", join)
    result = setting.trainer(started(), step(0), RunEnded(status="ok")).fit()
    assert re.fullmatch(
        r"uses the Ray at 10\.0\.0\.1:6379 \(RAY_ADDRESS\), where its name is run-[0-9a-f]{8}",
        setting.diary.told[1],
    )
    # the memory of this script, and what the workers have told of theirs
    assert result.peak_memory_total_bytes > sum(result.peak_memory_bytes.values()) == 1900


def test_a_relative_directory_in_a_ray_job_is_refused(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    config = RunConfig.load(ROOT / "configs/tiny.toml")
    with pytest.raises(ConfigError, match=r"the run directory runs/x is relative, but this is a"):
        Trainer(config, run_dir="runs/x").fit()
    with pytest.raises(ConfigError, match=r"such as --run-dir /mnt/shared/runs/tiny-\d+-\d+$"):
        Trainer(config).fit()


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), SystemExit(143)])
def test_an_interrupt_lets_the_step_end_and_goes_on(
    setting: Setting, interrupt: BaseException
) -> None:
    trainer = setting.trainer(started(), step(0), interrupt, step(1), RunEnded(status="stopped"))
    with pytest.raises(type(interrupt)):
        trainer.fit()
    assert setting.session.stop_requested
    assert (setting.saved.status, setting.saved.steps) == ("stopped", 2)
    assert setting.steps == [0, 1]
    assert not setting.session.open


def test_a_driver_that_dies_of_the_same_signal_does_not_matter(setting: Setting) -> None:
    trainer = setting.trainer(started(), step(0), SystemExit(143), WorkerError("driver is dead"))
    with pytest.raises(SystemExit) as raised:
        trainer.fit()
    assert raised.value.code == 143
    assert (setting.saved.status, setting.saved.first_error) == ("stopped", None)


def test_a_second_interrupt_does_not_wait(setting: Setting) -> None:
    trainer = setting.trainer(started(), KeyboardInterrupt(), KeyboardInterrupt(), step(0))
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    assert (setting.saved.status, setting.saved.steps) == ("stopped", 0)


def test_sigterm_is_an_interrupt(setting: Setting) -> None:
    class Terminator(Callback):
        def on_step(self, step: StepResult) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    trainer = setting.trainer(started(), step(0), step(1), callbacks=(Terminator(),))
    with pytest.raises(SystemExit) as raised:
        trainer.fit()
    assert raised.value.code == 143
    assert setting.saved.status == "stopped"


def test_a_callback_may_end_the_run(setting: Setting) -> None:
    class Strict(Callback):
        def on_step(self, step: StepResult) -> None:
            raise ValueError(f"step {step.step} is not good enough")

    with pytest.raises(ValueError, match="step 0 is not good enough"):
        setting.trainer(started(), step(0), step(1), callbacks=(Strict(),)).fit()
    assert setting.saved.first_error == "ValueError: step 0 is not good enough"
    assert setting.steps == [0]
    assert not setting.session.open


def test_a_taken_directory_is_refused_before_anything_else(setting: Setting) -> None:
    setting.run_dir.mkdir()
    (setting.run_dir / "result.json").write_text("mine")
    with pytest.raises(ConfigError, match="already holds a run"):
        setting.trainer(started()).fit()
    assert os.listdir(setting.run_dir) == ["result.json"]
    assert setting.diary.told == []


def test_data_that_is_not_there_is_refused_before_the_directory_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("started")

    monkeypatch.setattr(trainer_module, "run_session", never)
    config = RunConfig.load(ROOT / "configs/tiny.toml", [f'data.paths=["{tmp_path}/nowhere"]'])
    with pytest.raises(DataError, match="nowhere: holds no prepared data"):
        Trainer(config, run_dir=tmp_path / "run").fit()
    assert not (tmp_path / "run").exists()


def test_a_second_fit_needs_another_directory(setting: Setting) -> None:
    trainer = setting.trainer(started(), step(0), RunEnded(status="ok"))
    trainer.fit()
    with pytest.raises(ConfigError, match="already holds a run"):
        trainer.fit()


def resumed(at: int) -> RunResumed:
    return RunResumed(step=at, place="there", elapsed_s=1.0, same_programs=True)


def complete(at: int) -> CheckpointSaved:
    return CheckpointSaved(
        step=at, place=f"/c/step-{at}", size_bytes=1, elapsed_s=1.0, deleted=(), problem=""
    )


def test_a_killed_run_goes_on_in_its_directory(setting: Setting) -> None:
    with pytest.raises(KeyboardInterrupt):
        setting.trainer(started(), *map(step, range(3)), KeyboardInterrupt()).fit()
    assert setting.steps == [0, 1, 2]
    _, manifest = small(setting.run_dir / "checkpoints", 1)
    setting.diary.told.clear()
    trainer = setting.trainer(
        started(), resumed(1), step(1), complete(2), step(2), RunEnded(status="ok"), resume="auto"
    )
    result = trainer.fit()
    assert setting.session.given["checkpoints"] == f"{setting.run_dir}/checkpoints"
    assert setting.session.given["resume"].done == manifest.done
    assert setting.diary.told == [
        "begin",
        "uses a Ray of its own on this machine",
        "the learning rate is another",
        "metrics.jsonl: 2 lines after step 1 cut off, which had been done but not saved, and "
        "are done again",
        "it begins",
        "start",
        "resumed 1",
        "step 1",
        "saved 2",
        "step 2",
        "ok",
    ]
    assert setting.steps == [0, 1, 2]
    assert (result.first_step, result.steps, result.checkpoint) == (1, 3, "/c/step-2")


def test_without_another_save_the_checkpoint_is_that_which_was_loaded(setting: Setting) -> None:
    place, _ = small(setting.run_dir.parent / "c", 1)
    trainer = setting.trainer(started(), RunEnded(status="ok"), resume=str(place))
    assert trainer.fit().checkpoint == str(place)


def test_a_run_that_has_saved_nothing_begins_anew_and_says_so(setting: Setting) -> None:
    with pytest.raises(KeyboardInterrupt):
        setting.trainer(started(), step(0), KeyboardInterrupt()).fit()
    setting.diary.told.clear()
    setting.trainer(started(), step(0), RunEnded(status="ok"), resume="auto").fit()
    folder = f"{setting.run_dir}/checkpoints"
    assert setting.diary.told[2:4] == [
        f"{folder} holds no complete checkpoint; the run begins anew",
        "metrics.jsonl: 1 line after step 0 cut off, which had been done but not saved, and "
        "are done again",
    ]
    assert setting.session.given["resume"] is None
    assert setting.steps == [0]


def test_a_run_that_is_done_is_not_done_again(setting: Setting) -> None:
    steps = RunConfig.load(ROOT / "configs/tiny.toml").train.steps
    done = setting.trainer(started(), *map(step, range(steps)), RunEnded(status="ok")).fit()
    small(setting.run_dir / "checkpoints", steps)
    setting.diary.told.clear()
    assert setting.trainer(step(99), resume="auto").fit() == done
    assert setting.diary.told == ["ok"]
    assert not setting.session.given


def test_checkpoints_of_another_run_are_not_mixed_with(setting: Setting) -> None:
    setting.run_dir.mkdir()
    small(setting.run_dir.parent / "c", 1)
    config = override(
        RunConfig.load(ROOT / "configs/tiny.toml"),
        [f"checkpoint.folder={setting.run_dir.parent}/c"],
    )
    with pytest.raises(
        CheckpointError, match=r"holds checkpoints of another run \(step-1\); resume"
    ):
        Trainer(config, run_dir=setting.run_dir).fit()
