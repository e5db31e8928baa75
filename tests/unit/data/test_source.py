from collections.abc import Callable
from typing import Any

import pytest
import torch

from disagmoe.config.data import DataConfig
from disagmoe.config.train import EvalConfig, TrainConfig
from disagmoe.data.batch import next_token_batch
from disagmoe.data.order import Cursor, SequenceSource
from disagmoe.data.prepared import PreparedData
from disagmoe.data.source import FixedSource, PreparedSource
from disagmoe.errors import ConfigError, DataError

MakeData = Callable[[list[str]], PreparedData]
SEVEN = ["a", "bb", "ccc", "dddd", "eeeee", "ffffff", "ggggggg"]


def _train(**values: Any) -> TrainConfig:
    return TrainConfig(**({"steps": 1, "global_batch_size": 3, "sequence_length": 4} | values))


def _open(*data: PreparedData, weights: list[float] | None = None, **train: Any) -> PreparedSource:
    config = DataConfig(paths=[one.path for one in data], weights=weights or [])
    return PreparedSource.open(config, _train(**train), vocab_size=300)


def test_steps_are_slices_of_the_order(make_data: MakeData) -> None:
    data = make_data(SEVEN)
    source = _open(data, seed=9)
    rows = torch.from_numpy(SequenceSource(data, sequence_length=4, seed=9).read(0, 30))
    for step in (7, 0, 9, 3):  # 8 sequences per epoch, so that steps straddle epochs
        batch = source.step(step)
        assert torch.equal(batch.tokens_BS, rows[3 * step : 3 * step + 3, :-1])
        assert torch.equal(batch.targets_BS, rows[3 * step : 3 * step + 3, 1:])


def test_cursors_follow_the_steps(make_data: MakeData) -> None:
    source = _open(make_data(SEVEN))
    assert [source.cursors(step) for step in (0, 2, 3)] == [
        [Cursor(0, 0)],
        [Cursor(0, 6)],
        [Cursor(1, 1)],
    ]


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
    assert by_weight.cursors(4) == [Cursor(2, 0), Cursor(0, 4)]
    assert by_weight.fingerprints() == [small.fingerprint, large.fingerprint]


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
    assert list(source.held_out()) == [odd]
    with pytest.raises(DataError, match=r"step 2: only 2 batches were given"):
        source.step(2)
