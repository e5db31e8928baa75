import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from disagmoe.data.batch import (
    Batch,
    count_valid,
    micro_batch_bounds,
    next_token_batch,
    split_micro_batches,
    worker_part,
)

sizes = st.integers(0, 40)


def _batch(sequences: int, length: int = 3) -> Batch:
    rows = torch.arange(sequences * (length + 1)).reshape(sequences, length + 1)
    return next_token_batch(rows)


@given(sizes, st.integers(1, 12))
def test_micro_batches_partition_the_batch(sequences: int, size: int) -> None:
    bounds = micro_batch_bounds(sequences, size)
    assert [i for start, stop in bounds for i in range(start, stop)] == list(range(sequences))
    assert all(stop - start == size for start, stop in bounds[:-1])
    assert all(1 <= stop - start <= size for start, stop in bounds)


@given(sizes, st.integers(1, 7), st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=5))
def test_all_parts_together_are_the_batch(sequences: int, size: int, weights: list[float]) -> None:
    batch = _batch(sequences)
    parts = [
        worker_part(micro_batch, weights, rank)
        for micro_batch in split_micro_batches(batch, size)
        for rank in range(len(weights))
    ] or [batch]
    assert torch.equal(torch.cat([part.tokens_BS for part in parts]), batch.tokens_BS)
    assert torch.equal(torch.cat([part.targets_BS for part in parts]), batch.targets_BS)


def test_last_micro_batch_is_short_and_a_worker_may_have_nothing() -> None:
    micro_batches = split_micro_batches(_batch(5), 4)
    assert [micro_batch.sequences for micro_batch in micro_batches] == [4, 1]
    parts = [worker_part(micro_batches[1], [1.0] * 3, rank) for rank in range(3)]
    assert [tuple(part.tokens_BS.shape) for part in parts] == [(1, 3), (0, 3), (0, 3)]


def test_targets_are_the_next_tokens_and_none_is_lost() -> None:
    batch = next_token_batch(torch.tensor([[1, 2, 3, 4]]))
    assert batch.tokens_BS.tolist() == [[1, 2, 3]]
    assert batch.targets_BS.tolist() == [[2, 3, 4]]


def test_masked_prompt_keeps_the_first_answer_token() -> None:
    a, b, c, eos = 10, 11, 12, 0
    prompt = torch.tensor([[True, True, False, False]])
    batch = next_token_batch(torch.tensor([[a, b, c, eos]]), prompt)
    assert batch.targets_BS.tolist() == [[-100, c, eos]]
    assert count_valid(batch.targets_BS) == 2


def test_count_valid_of_nothing() -> None:
    assert count_valid(torch.full((2, 3), -100)) == 0
    assert count_valid(torch.zeros((0, 3), dtype=torch.int64)) == 0


def test_batch_refuses_other_types_and_shapes() -> None:
    good = torch.zeros((2, 3), dtype=torch.int64)
    with pytest.raises(ValueError, match=r"tokens are torch.int32 with shape \(2, 3\)"):
        Batch(good.int(), good)
    with pytest.raises(ValueError, match=r"targets are torch.int64 with shape \(3,\)"):
        Batch(good, good[0])
    with pytest.raises(ValueError, match=r"shapes \(2, 3\) and \(1, 3\); expected equal ones"):
        Batch(good, good[:1])
