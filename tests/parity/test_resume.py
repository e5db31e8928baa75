"""Saved, killed, resumed: the same bits on the same layout, the same state on any other."""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from disagmoe.actors.events import CheckpointSaved, Event, RunEnded, RunResumed, StepResult
from disagmoe.actors.messages import ResumePoint
from disagmoe.actors.resume import resume_point
from disagmoe.actors.startup import open_data
from disagmoe.checkpoint.find import find
from disagmoe.checkpoint.slices import Kind
from disagmoe.config.run import RunConfig
from disagmoe.data.batch import Batch
from disagmoe.data.position import DataPosition, Origin
from disagmoe.data.prepared import PreparedData
from disagmoe.data.source import BatchSource, FixedSource
from disagmoe.model import names
from disagmoe.runtime.shards import live_slices
from disagmoe.runtime.step import WorkerRuntime
from tests.unit.actors.threadcrew import run_of
from tests.unit.data.conftest import in_process, make_data, prepare_here
from tests.unit.runtime.tiny import batch_of, tiny

__all__ = ["in_process", "make_data", "prepare_here"]  # fixtures

SPLIT = {"parallel__attention_workers": 2, "parallel__expert_workers": 2}

State = dict[tuple[Kind, str], torch.Tensor]


@dataclass
class Ran:
    """What a run, or a part of one, has done."""

    steps: list[StepResult] = field(default_factory=list)
    state: State = field(default_factory=dict)
    updates: set[int] = field(default_factory=set)
    saved: list[int] = field(default_factory=list)
    resumed: list[int] = field(default_factory=list)

    @property
    def numbers(self) -> list[tuple[Any, ...]]:
        """All that a step says of the run as a whole."""
        return [
            (s.step, s.loss, s.balance, s.z, s.grad_norm, s.lr, s.tokens, s.skipped, s.expert_load)
            for s in self.steps
        ]


def state_of(runtimes: Mapping[str, WorkerRuntime], shapes: Mapping[str, Any]) -> State:
    """Masters, moments and weights by global name, put together from all workers' shards."""
    whole: State = {}
    for runtime in runtimes.values():
        for live in live_slices(runtime.update):
            cut = live.slice
            for kind, tensor in live.tensors.items():
                size = torch.Size(shapes[cut.name]).numel()
                flat = whole.setdefault((kind, cut.name), torch.full((size,), torch.nan))
                flat[cut.start : cut.stop] = tensor.float()
    return whole


def checksums(state: State) -> dict[str, str]:
    """A hash per kind and parameter; each matrix of each expert is one parameter."""
    return {
        f"{kind}/{name}": hashlib.sha256(tensor.numpy().tobytes()).hexdigest()
        for (kind, name), tensor in state.items()
    }


def train(
    config: RunConfig,
    folder: Path,
    source: BatchSource | None = None,
    point: ResumePoint | None = None,
    until: int | None = None,
) -> Ran:
    """Run `config` to its end, or kill it once the checkpoint of `until` steps is complete."""
    ran = Ran()
    with run_of(config, folder, source, point) as (crew, events):
        for event in events:
            note(ran, event)
            if until is not None and until in ran.saved:
                break
        else:
            assert event == RunEnded(status="ok")
            ran.state = state_of(crew.runtimes, names.global_shapes(config.model))
            ran.updates = {r.update.optimizer.step_count for r in crew.runtimes.values()}
    return ran


def note(ran: Ran, event: Event) -> None:
    match event:
        case StepResult():
            ran.steps.append(event)
        case CheckpointSaved():
            ran.saved.append(event.step)
        case RunResumed():
            ran.resumed.append(event.step)
        case RunEnded():
            assert event.failures == (), event.failures[0].message
        case _:
            pass


def point_at(folder: Path, config: RunConfig, step: int) -> ResumePoint:
    """Where a run of prepared data goes on."""
    point, news = resume_point(find(f"{folder}@{step}"), open_data(config))
    assert news == []
    return point


def fixed_point(folder: Path, step: int) -> ResumePoint:
    """Where a run of given batches goes on."""
    found = find(f"{folder}@{step}")
    return ResumePoint(
        place=str(found.place),
        done=found.manifest.done,
        origin=Origin(step),
        programs_sha256=found.manifest.programs_sha256,
    )


def assert_same(resumed: Ran, straight: Ran) -> None:
    """From the first step that was resumed on, to the last bit."""
    first = resumed.steps[0].step
    assert resumed.numbers == straight.numbers[first:]
    assert checksums(resumed.state) == checksums(straight.state)
    assert resumed.updates == straight.updates


@pytest.fixture
def data(make_data: Callable[[list[str]], PreparedData]) -> str:
    """Text of which 10 steps read more than two epochs, in documents of odd lengths."""
    texts = [f"{i}: {'ab' * (i % 5)}" for i in range(9)]
    return make_data(texts).path


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_resumed_run_is_the_run(data: str, tmp_path: Path, precision: str) -> None:
    """Killed after 3 steps and again after 7, in other epochs than it began in."""
    config = tiny(
        **SPLIT,
        model__vocab_size=257,
        train__precision=precision,
        train__steps=10,
        train__lr_schedule__kind='"cosine"',
        train__lr_schedule__warmup_steps=2,
        parallel__profile='"off"',
        data__paths=f'["{data}"]',
    )
    straight = train(config, tmp_path / "straight")
    assert straight.saved == [10]
    saving = config.model_copy(
        update={"checkpoint": config.checkpoint.model_copy(update={"interval_steps": 1})}
    )
    folder = tmp_path / "killed"
    killed = train(saving, folder, until=3)
    assert killed.numbers == straight.numbers[: len(killed.steps)]
    epochs = set()
    for step, until in ((3, 7), (7, None)):
        point = point_at(folder, saving, step)
        epochs.add(find(f"{folder}@{step}").manifest.data["paths"][0]["epoch"])
        assert point.done.tokens == step * 4 * 5
        again = train(saving, folder, point=point, until=until)
        assert again.resumed == [step]
        assert again.numbers == straight.numbers[step : step + len(again.steps)]
    assert len(epochs) == 2
    assert_same(again, straight)
    assert find(str(folder)).manifest.done == find(str(tmp_path / "straight")).manifest.done


class Noisy:
    """Batches whose targets are dropped at random, by the numbers of the process."""

    def __init__(self, config: RunConfig) -> None:
        self._batch = batch_of(config)

    def step(self, step: int) -> Batch:
        dropped = torch.rand(self._batch.targets_BS.shape) < 0.3
        return Batch(self._batch.tokens_BS, self._batch.targets_BS.masked_fill(dropped, -100))

    def held_out(self) -> Iterator[Batch]:
        return iter(())

    def position(self, step: int) -> DataPosition:
        return DataPosition(mixed=step)


def test_random_numbers_go_on_where_they_were(tmp_path: Path) -> None:
    # threads of one process share its random numbers, so that there is one worker
    config = tiny(
        train__steps=6,
        checkpoint__interval_steps=2,
        checkpoint__keep_last=0,
        parallel__schedule="ep_1f1b",
        parallel__attention_workers=1,
        parallel__expert_workers=1,
    )
    torch.manual_seed(5)
    straight = train(config, tmp_path, Noisy(config))
    assert len({step.valid_targets for step in straight.steps}) > 1
    torch.manual_seed(6)
    again = train(config, tmp_path, Noisy(config), fixed_point(tmp_path, 2))
    assert_same(again, straight)


def test_a_skipped_step_stays_skipped(tmp_path: Path) -> None:
    """The optimizer's count of updates is not that of steps."""
    config = tiny(train__steps=4, checkpoint__interval_steps=2, train__precision="fp32")
    batches = [batch_of(config, seed) for seed in range(4)]
    batches[1] = Batch(batches[1].tokens_BS, torch.full_like(batches[1].targets_BS, -100))
    straight = train(config, tmp_path, FixedSource(batches))
    point = fixed_point(tmp_path, 2)
    assert (point.done.step, point.done.updates) == (2, 1)
    again = train(config, tmp_path, FixedSource(batches), point)
    assert again.updates == straight.updates == {3}
    assert_same(again, straight)


def layout(attention: int, experts: int, groups: int, **more: object) -> dict[str, object]:
    return {
        "parallel__attention_workers": attention,
        "parallel__expert_workers": experts,
        "parallel__groups": groups,
        **more,
    }


SAVED_BY = layout(2, 4, 2)
LOADED_BY = [
    layout(1, 1, 1),
    layout(3, 2, 1),
    layout(2, 8, 2),
    layout(2, 4, 2, parallel__residual='"direct"'),
    layout(1, 3, 1, parallel__rings=2),
    layout(2, 2, 2, parallel__schedule='"ep_1f1b"'),
]


def experts_of(config_sets: Mapping[str, object], precision: str, **more: object) -> RunConfig:
    return tiny(**config_sets, model__experts=8, train__precision=precision, train__steps=4, **more)


@pytest.fixture(scope="module", params=["fp32", "bf16"])
def reshard(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, Ran, State]:
    """A run of 2 x (2 attention + 4 expert) workers that has saved after 3 of 4 steps, and the
    state that it had then."""
    folder = tmp_path_factory.mktemp(request.param)
    config = experts_of(SAVED_BY, request.param, checkpoint__interval_steps=3)
    source = FixedSource([batch_of(config, seed) for seed in range(4)])
    ran = train(config, folder, source)
    assert ran.saved == [3, 4]
    return request.param, folder, ran, loaded(config, folder, source)


def loaded(config: RunConfig, folder: Path, source: BatchSource) -> State:
    """The state of the workers of `config` when they have loaded step 3 and done nothing."""
    with run_of(config, folder / "unused", source, fixed_point(folder, 3)) as (crew, events):
        for event in events:
            if isinstance(event, RunResumed):
                break
        crew.kill()
        for pool in crew._threads.values():
            pool.shutdown()
        return state_of(crew.runtimes, names.global_shapes(config.model))


@pytest.mark.parametrize("sets", LOADED_BY, ids=str)
def test_any_layout_loads_what_another_has_saved(
    reshard: tuple[str, Path, Ran, State], sets: dict[str, object]
) -> None:
    precision, folder, ran, expected = reshard
    config = experts_of(sets, precision)
    source = FixedSource([batch_of(config, seed) for seed in range(4)])
    state = loaded(config, folder, source)
    assert checksums(state) == checksums(expected)
    shapes = names.global_shapes(config.model)
    assert {name for _, name in state} == shapes.keys()
    assert not any(bool(tensor.isnan().any()) for tensor in state.values())
    (folder / "next").mkdir(exist_ok=True)
    again = train(config, folder / "next", source, fixed_point(folder, 3))
    # bf16 rounds each partial sum of experts to 8 bits, in another grouping on another layout
    tolerance = 1e-6 if precision == "fp32" else 2e-3
    assert again.steps[0].loss == pytest.approx(ran.steps[3].loss, rel=tolerance)
    assert again.updates == ran.updates


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp64"])
def test_another_precision_begins_with_the_same_masters(
    reshard: tuple[str, Path, Ran, State], precision: str
) -> None:
    _, folder, _, expected = reshard
    config = experts_of(layout(1, 2, 1), precision)
    source = FixedSource([batch_of(config, seed) for seed in range(4)])
    state = loaded(config, folder, source)
    assert {kind for kind, _ in state} >= {Kind.MASTER, Kind.EXP_AVG, Kind.EXP_AVG_SQ}
    for (kind, name), tensor in state.items():
        if kind is Kind.WEIGHT:
            assert torch.equal(tensor, expected[Kind.MASTER, name].bfloat16().float())
        else:
            assert torch.equal(tensor, expected[kind, name])


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (
            damage,
            r"^F0\.0: .*/step-2/F0\.0\.safetensors: its bytes from 0 to \d+ are not those that w",
        ),
        (
            cut,
            r"^F0\.0: .*/step-2/F0\.0\.safetensors: has \d+ bytes, the manifest says \d+; restore",
        ),
        (Path.unlink, r"^F0\.0: .*/step-2/F0\.0\.safetensors: is missing; restore the file from a"),
    ],
)
def test_a_broken_checkpoint_ends_the_run_before_its_first_step(
    tmp_path: Path, harm: Callable[[Path], None], message: str
) -> None:
    config = tiny(train__steps=4, checkpoint__interval_steps=2)
    source = FixedSource([batch_of(config, seed) for seed in range(4)])
    train(config, tmp_path, source)
    harm(tmp_path / "step-2/F0.0.safetensors")
    with run_of(config, tmp_path / "again", source, fixed_point(tmp_path, 2)) as (_, events):
        *before, ended = events
    assert not any(isinstance(event, StepResult | RunResumed) for event in before)
    assert isinstance(ended, RunEnded)
    assert ended.status == "failed"
    assert re.search(message, ended.failures[0].message)


def test_a_disk_that_is_full_ends_the_run_and_the_last_good_one_stays(tmp_path: Path) -> None:
    config = tiny(train__steps=8, checkpoint__interval_steps=2, checkpoint__keep_last=1)
    source = FixedSource([batch_of(config, seed) for seed in range(8)])
    full = tmp_path / "step-6/F0.0.safetensors.partial"
    with run_of(config, tmp_path, source) as (_, events):
        full.parent.mkdir()
        full.symlink_to("/dev/full")
        seen = list(events)
    ended = seen[-1]
    assert isinstance(ended, RunEnded)
    assert "cannot write its" in ended.failures[0].message
    assert "No space left on device; free space or rights there, or" in ended.failures[0].message
    assert [event.step for event in seen if isinstance(event, CheckpointSaved)][-1:] == [4]
    assert find(str(tmp_path)).manifest.step == 4
    again = train(config, tmp_path, source, fixed_point(tmp_path, 4))
    assert again.saved == [6, 8]
    assert_same(again, train(config, tmp_path / "straight", source))
