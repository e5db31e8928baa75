from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from disagmoe.config.data import DataConfig
from disagmoe.config.train import EvalConfig, TrainConfig
from disagmoe.data.batch import next_token_batch
from disagmoe.data.order import SequenceSource
from disagmoe.data.position import Origin
from disagmoe.data.prepared import PreparedData
from disagmoe.data.source import FixedSource, PreparedSource
from disagmoe.errors import ConfigError, DataError

MakeData = Callable[[list[str]], PreparedData]
SEVEN = ["a", "bb", "ccc", "dddd", "eeeee", "ffffff", "ggggggg"]


def _train(**values: Any) -> TrainConfig:
    return TrainConfig(**({"steps": 1, "global_batch_size": 3, "sequence_length": 4} | values))


def _open(
    *data: PreparedData,
    weights: list[float] | None = None,
    origin: Origin | None = None,
    **train: Any,
) -> PreparedSource:
    config = DataConfig(paths=[one.path for one in data], weights=weights or [])
    return PreparedSource.open(config, _train(**train), vocab_size=300, origin=origin or Origin())


def _stands(source: PreparedSource, step: int) -> list[tuple[int, int, int]]:
    """Epoch, position and sequences of each path before `step`."""
    paths = source.position(step).paths
    return [(path.epoch, path.position, path.sequences) for path in paths]


def test_steps_are_slices_of_the_order(make_data: MakeData) -> None:
    data = make_data(SEVEN)
    source = _open(data, seed=9)
    rows = torch.from_numpy(SequenceSource(data, sequence_length=4, seed=9).read(0, 30))
    for step in (7, 0, 9, 3):  # 8 sequences per epoch, so that steps straddle epochs
        batch = source.step(step)
        assert torch.equal(batch.tokens_BS, rows[3 * step : 3 * step + 3, :-1])
        assert torch.equal(batch.targets_BS, rows[3 * step : 3 * step + 3, 1:])


def test_positions_follow_the_steps(make_data: MakeData) -> None:
    data = make_data(SEVEN)
    source = _open(data)
    assert [_stands(source, step) for step in (0, 2, 3)] == [[(0, 0, 0)], [(0, 6, 6)], [(1, 1, 9)]]
    position = source.position(3)
    assert (position.mixed, position.weights) == (9, [float(data.tokens)])
    assert (position.paths[0].path, position.paths[0].fingerprint) == (data.path, data.fingerprint)


def test_a_resume_goes_on_in_the_middle_of_the_order(make_data: MakeData) -> None:
    """Twice, across epochs, with sequences whose documents end anywhere."""
    small, large = make_data(["a" * 9, "c" * 5]), make_data(SEVEN)
    whole = _open(small, large)
    resumed = whole
    for step in (4, 7):
        saved = resumed.position(step)
        assert saved == whole.position(step)
        origin, news = _open(small, large).origin_after(step, saved)
        assert news == []
        resumed = _open(small, large, origin=origin)
        for later in range(step, step + 9):
            assert torch.equal(resumed.step(later).tokens_BS, whole.step(later).tokens_BS)


def test_another_batch_size_reads_on_without_a_gap(make_data: MakeData) -> None:
    data = make_data(SEVEN)
    saved = _open(data).position(5)  # 15 sequences
    origin, news = _open(data, global_batch_size=2).origin_after(5, saved)
    resumed = _open(data, global_batch_size=2, origin=origin)
    assert news == []
    assert _stands(resumed, 5) == [(1, 7, 15)]
    expected = SequenceSource(data, sequence_length=4, seed=0).read(15, 4)
    rows = torch.cat([resumed.step(step).tokens_BS for step in (5, 6)])
    assert rows.tolist() == expected[:, :-1].tolist()


def test_other_shares_let_each_path_go_on(make_data: MakeData) -> None:
    small, large = make_data(["a" * 9, "c" * 5]), make_data(SEVEN)
    before = _open(small, large, weights=[1.0, 1.0])
    saved = before.position(4)
    assert [path.sequences for path in saved.paths] == [6, 6]
    origin, news = _open(small, large, weights=[3.0, 1.0]).origin_after(4, saved)
    resumed = _open(small, large, weights=[3.0, 1.0], origin=origin)
    assert news == ["data: the paths go on where they stood, mixed anew"]
    assert [path.sequences for path in resumed.position(8).paths] == [15, 9]
    again, _ = _open(small, large, weights=[3.0, 1.0]).origin_after(8, resumed.position(8))
    third = _open(small, large, weights=[3.0, 1.0], origin=again)
    assert torch.equal(third.step(9).tokens_BS, resumed.step(9).tokens_BS)


def test_new_and_reordered_paths_begin_at_their_beginning_and_are_named(
    make_data: MakeData,
) -> None:
    small, large = make_data(["a" * 9, "c" * 5]), make_data(SEVEN)
    saved = _open(small, large).position(4)
    origin, news = _open(large, make_data(["new"] * 9)).origin_after(4, saved)
    assert origin == Origin(4, 0, (saved.paths[1].sequences, 0))
    assert "data3 is read from its beginning; it is new, or" in news[0]
    assert news[1:] == [f"data: {small.path} is not read any more"]
    origin, news = _open(small, large, seed=1).origin_after(4, saved)
    assert origin == Origin(4, 0, (0, 0))
    assert len(news) == 4


def test_a_copy_of_the_same_tokens_is_the_same_data(make_data: MakeData) -> None:
    saved = _open(make_data(SEVEN)).position(2)
    copy = make_data(SEVEN)
    assert _open(copy).origin_after(2, saved) == (Origin(2, 6, (0,)), [])


def test_other_tokens_under_the_same_path_are_refused(make_data: MakeData) -> None:
    one, other = make_data(SEVEN), make_data(SEVEN[1:])
    saved = _open(one).position(2)
    for name in ("manifest.json", *(shard.name for shard in other.manifest.shards)):
        (Path(one.path) / name).write_bytes((Path(other.path) / name).read_bytes())
    with pytest.raises(DataError, match=r"data1: holds other tokens than when the checkpoint was"):
        _open(PreparedData.open(one.path)).origin_after(2, saved)


def test_held_out_only_where_the_run_evaluates(make_data: MakeData) -> None:
    data = make_data(SEVEN)
    assert list(_open(data).held_out()) == []
    source = _open(data, eval=EvalConfig(every=1, sequences=4))
    batches = list(source.held_out())
    assert [batch.sequences for batch in batches] == [3, 1]
    expected = SequenceSource(data, sequence_length=4, seed=0, held_out=4).held_out()
    assert torch.cat([batch.targets_BS for batch in batches]).tolist() == expected[:, 1:].tolist()


def test_mix_goes_by_size_or_by_weights(make_data: MakeData) -> None:
    small, large = make_data(["a" * 9, "a" * 9]), make_data(["b" * 9] * 6)
    by_size = _open(small, large)
    tokens = torch.cat([by_size.step(step).tokens_BS for step in range(4)])
    assert sum(ord("a") in row for row in tokens.tolist()) == 3  # 20 of 80 tokens
    by_weight = _open(small, large, weights=[2.0, 1.0])
    tokens = torch.cat([by_weight.step(step).tokens_BS for step in range(4)])
    assert sum(ord("a") in row for row in tokens.tolist()) == 8
    assert _stands(by_weight, 4) == [(2, 0, 8), (0, 4, 4)]


def test_held_out_sequences_follow_the_mix(make_data: MakeData) -> None:
    small, large = make_data(["a" * 9] * 4), make_data(["b" * 9] * 4)
    source = _open(small, large, weights=[3.0, 1.0], eval=EvalConfig(every=1, sequences=4))
    rows = torch.cat([batch.tokens_BS for batch in source.held_out()]).tolist()
    assert [ord("a") in row for row in rows] == [True, True, True, False]


def test_weights_must_match_paths(make_data: MakeData) -> None:
    data = make_data(SEVEN)
    with pytest.raises(ConfigError, match=r"data.weights has 2 values for 1 data.paths"):
        _open(data, weights=[1.0, 2.0])


def test_vocabulary_is_checked(make_data: MakeData) -> None:
    config = DataConfig(paths=[make_data(SEVEN).path])
    with pytest.raises(ConfigError, match=r"model.vocab_size is 100, but the tokenizer"):
        PreparedSource.open(config, _train(), vocab_size=100)


def test_fixed_batches_come_as_given() -> None:
    odd = next_token_batch(torch.tensor([[1, 2, 3]]), torch.tensor([[False, True, False]]))
    long = next_token_batch(torch.arange(14).reshape(2, 7))
    source = FixedSource([odd, long], [odd])
    assert source.step(1) is long
    assert source.step(0) is odd
    assert source.position(1).mixed == 1
    assert list(source.held_out()) == [odd]
    with pytest.raises(DataError, match=r"step 2: only 2 batches were given"):
        source.step(2)
