"""Who takes part in `bench compute`, on contenders of no size."""

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from disagmoe.bench import compute
from disagmoe.bench.apart import Learned, Timed
from disagmoe.bench.compute import IMPLEMENTATIONS, Contest, Side, compare, pinned_to, problems
from disagmoe.bench.contenders import Trial, best
from disagmoe.bench.hf_model import check_transformers
from disagmoe.bench.hf_training import gathered_bytes
from disagmoe.config.load import load_run_config, override
from disagmoe.errors import ConfigError, PlacementError, WorkerError
from disagmoe.schedule.accounting import Shares
from disagmoe.units import MIB

CONFIG = load_run_config(
    Path(__file__).parents[3] / "configs/bench/compute.toml", ["train.global_batch_size=16"]
)


class Scripted:
    """A contender whose step takes `step_s` / its micro-batch size; it fails with 0."""

    def __init__(self, name: str, step_s: float) -> None:
        self.name = name
        self._step_s = step_s
        self._size = 0
        self.closed = False

    def trials(self, sizes: Sequence[int]) -> list[Trial]:
        if not self._step_s:
            raise WorkerError(f"{self.name}: out of luck")
        return [Trial(size, self._step_s / size) for size in sizes]

    def settle(self, trial: Trial) -> None:
        self._size = trial.micro_batch_size

    def step(self) -> Timed:
        return Timed(self._step_s / self._size, Learned(5.0, 1.0))

    def learned(self) -> list[Learned]:
        return [Learned(5.0, 1.0)]

    def shares(self) -> dict[str, Shares]:
        return {}

    def close(self) -> None:
        self.closed = True


SECONDS = {"grouped_mm": 8.0, "eager": 11.0, "batched_mm": 0.125}


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Steps of Transformers in micro-batches of one sequence; a test may change them."""
    chosen = dict(SECONDS)
    monkeypatch.setattr(
        compute, "Alone", lambda name, make, threads: Scripted(name, chosen[make.experts])
    )
    memory = SimpleNamespace(available=2 * gathered_bytes(CONFIG))
    monkeypatch.setattr(compute.psutil, "virtual_memory", lambda: memory)
    return chosen


def play(rounds: int = 3) -> tuple[Contest, list[str]]:
    said: list[str] = []
    with ExitStack() as stack:
        contest = Contest(stack, (1, 2, 4), said.append)
        for name in IMPLEMENTATIONS:
            contest.try_transformers(name, CONFIG, 2)
        contest.join(Scripted("reference", 6.0))
        contest.play(rounds)
    return contest, said


@pytest.mark.usefixtures("seconds")
def test_all_that_keep_up_play_with_their_best_size() -> None:
    contest, said = play()
    assert said == [
        "grouped_mm: 2.00 s per step in micro-batches of 4",
        "eager: 2.75 s per step in micro-batches of 4",
        "batched_mm: 0.03 s per step in micro-batches of 4",
        "reference: 1.50 s per step in micro-batches of 4",
        "grouped_mm: left out of the rounds, it takes 64.0 times as long as the fastest",
        "eager: left out of the rounds, it takes 88.0 times as long as the fastest",
    ]
    assert contest.side("batched_mm", 4096).steps_s == (0.03125,) * 3
    assert contest.side("reference", 4096) == Side(
        name="reference",
        step_tokens=4096,
        micro_batch_size=4,
        steps_s=(1.5,) * 3,
        learned=(Learned(5.0, 1.0),),
    )


def test_who_is_far_behind_is_listed_with_its_trial(seconds: dict[str, float]) -> None:
    seconds |= {"eager": 12.5, "batched_mm": 0.25}
    contest, said = play()
    eager, batched = contest.side("eager", 4096), contest.side("batched_mm", 4096)
    assert eager.steps_s == (3.125,)
    assert eager.left_out == "it takes 1.6 times as long as the fastest"
    # a sixteenth of the batch in an eighth of the fastest's step
    assert (batched.step_tokens, batched.steps_s, batched.learned) == (256, (0.25,), ())
    assert batched.left_out == "one sequence takes 2.0 times its share of the fastest's step"
    assert said[2] == f"batched_mm: left out of the rounds, {batched.left_out}"


def test_weights_are_not_copied_into_memory_that_is_not_there(
    seconds: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        compute.psutil, "virtual_memory", lambda: SimpleNamespace(available=512 * MIB)
    )
    batched = play()[0].side("batched_mm", 4096)
    assert batched == Side(
        name="batched_mm",
        left_out="it copies the weights of every choice, 4.2 GiB for one sequence, and 512.0 MiB "
        "of memory are free",
    )


def test_an_implementation_that_fails_is_left_out_and_ours_is_not(
    seconds: dict[str, float],
) -> None:
    seconds["eager"] = 0.0
    contest, _ = play()
    assert contest.side("eager", 4096) == Side(name="eager", left_out="eager: out of luck")
    with ExitStack() as stack, pytest.raises(WorkerError, match=r"^run: out of luck$"):
        Contest(stack, (1,), print).join(Scripted("run", 0.0))


def test_without_any_implementation_there_is_nothing_to_compare(seconds: dict[str, float]) -> None:
    seconds |= dict.fromkeys(IMPLEMENTATIONS, 0.0)
    with pytest.raises(WorkerError, match="no expert implementation of Transformers"):
        play()


def test_contenders_end_with_the_contest() -> None:
    failing = Scripted("run", 0.0)
    with ExitStack() as stack, pytest.raises(WorkerError):
        Contest(stack, (1,), print).join(failing)
    assert failing.closed


def test_a_batch_that_fits_no_size_is_an_error() -> None:
    class Picky(Scripted):
        def trials(self, sizes: Sequence[int]) -> list[Trial]:
            return []

    with pytest.raises(WorkerError, match=r"run: no micro-batch size of \[8\] fits its batch"):
        best(Picky("run", 1.0), [8])


def test_what_transformers_lacks_is_refused_at_once() -> None:
    assert problems(CONFIG) == []
    config = override(
        CONFIG,
        [
            *("model.forced_balance=true", "model.vocab_size=256", "train.loss.z_coef=1e-3"),
        ],
    )
    assert problems(config) == [
        "model.forced_balance must be false here: Transformers' routers decide",
        "train.loss.aux_coef and z_coef must be 0 here: Transformers defines these losses in "
        "another way",
        "model.vocab_size = 256; the text of this bench needs 257 or more",
    ]


def test_without_transformers_the_bench_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match=r"not installed; .* pip install 'disagmoe\[hf\]'$"):
        compare(CONFIG, tmp_path, (1,), 1, print)


def test_an_old_transformers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(__version__="4.57.1"))
    with pytest.raises(ConfigError, match=r"4\.57\.1 has no choice of expert implementations"):
        check_transformers()


def test_a_machine_with_too_few_cores_is_refused_and_cores_come_back() -> None:
    before = os.sched_getaffinity(0)
    with (
        pytest.raises(PlacementError, match=r"have 4096 compute threads .* only \d+ cores"),
        pinned_to(4096),
    ):
        pass
    with pinned_to(1):
        assert os.sched_getaffinity(0) == {min(before)}
    assert os.sched_getaffinity(0) == before
