from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagmoe.data.order import SEQUENCES, Cursor, SequenceSource, permutation
from disagmoe.data.prepared import PreparedData
from disagmoe.errors import DataError

MakeData = Callable[[list[str]], PreparedData]
SEVEN = ["a", "bb", "ccc", "dddd", "eeeee", "ffffff", "ggggggg"]


@given(st.integers(0, 10**6), st.integers(1, 1000), st.integers(0, 5000))
def test_cursor_is_a_count(start: int, per_epoch: int, more: int) -> None:
    cursor = Cursor.at(start, per_epoch)
    assert cursor.count(per_epoch) == start
    assert 0 <= cursor.position < per_epoch
    assert cursor.advance(more, per_epoch) == Cursor.at(start + more, per_epoch)


def test_permutation_is_fixed_for_good() -> None:
    """The order is part of what a resume relies on: it may never change between versions."""
    assert permutation(7, seed=0, epoch=0).tolist() == [0, 2, 1, 5, 4, 3, 6]
    assert permutation(7, seed=0, epoch=1).tolist() == [5, 3, 2, 4, 1, 0, 6]
    assert permutation(7, seed=1, epoch=0).tolist() == [3, 5, 2, 0, 6, 1, 4]


def test_each_epoch_has_every_document_once_in_another_order() -> None:
    orders = [permutation(7, seed=3, epoch=epoch).tolist() for epoch in range(3)]
    assert all(sorted(order) == list(range(7)) for order in orders)
    assert len({tuple(order) for order in [*orders, list(range(7))]}) == 4


def _epoch_tokens(data: PreparedData, seed: int, epoch: int, documents: int) -> list[int]:
    order = permutation(documents, seed=seed, epoch=epoch)
    return [int(token) for d in order for token in data.document(int(d))]


def test_sequences_are_consecutive_tokens_of_the_permuted_documents(make_data: MakeData) -> None:
    data = make_data(SEVEN)
    source = SequenceSource(data, sequence_length=4, seed=5)
    assert data.tokens == 35
    assert source.per_epoch == 8  # 34 predictions in 8 sequences of 4; 2 are dropped
    for epoch in range(3):
        stream = _epoch_tokens(data, 5, epoch, 7)
        order = permutation(8, seed=5, epoch=epoch, of=SEQUENCES).tolist()
        assert sorted(order) == list(range(8))
        expected = [stream[i * 4 : i * 4 + 5] for i in order]
        assert source.read(epoch * 8, 8).tolist() == expected


def test_resume_at_every_position_gives_the_same_stream(make_data: MakeData) -> None:
    data = make_data(SEVEN)
    total = 3 * SequenceSource(data, sequence_length=4, seed=1).per_epoch
    whole = SequenceSource(data, sequence_length=4, seed=1).read(0, total)
    for start in range(total):
        fresh = SequenceSource(data, sequence_length=4, seed=1)
        count = min(11, total - start)
        assert fresh.read(start, count).tolist() == whole[start : start + count].tolist()


@pytest.mark.parametrize("sizes", [[1] * 24, [5, 7, 12], [24], [23, 1], [0, 3, 21]])
def test_any_split_into_reads_gives_the_same_stream(make_data: MakeData, sizes: list[int]) -> None:
    data = make_data(SEVEN)
    whole = SequenceSource(data, sequence_length=4, seed=1).read(0, 24)
    source = SequenceSource(data, sequence_length=4, seed=1)
    parts = [source.read(sum(sizes[:i]), size) for i, size in enumerate(sizes)]
    assert np.concatenate(parts).tolist() == whole.tolist()


def test_a_document_longer_than_a_sequence_and_a_sequence_of_many(make_data: MakeData) -> None:
    data = make_data(["x" * 65, "y", "z" * 7, "w" * 64])
    for length in (1, 7, 139, 140):
        source = SequenceSource(data, sequence_length=length, seed=0)
        stream = _epoch_tokens(data, 0, 0, 4)
        rows = source.read(0, source.per_epoch)
        assert rows.shape == (140 // length, length + 1)
        order = permutation(source.per_epoch, seed=0, epoch=0, of=SEQUENCES)
        in_stream = rows[np.argsort(order)]
        assert in_stream[:, :-1].ravel().tolist() == stream[: rows.shape[0] * length]
        assert in_stream[:, 1:].ravel().tolist() == stream[1 : rows.shape[0] * length + 1]


def test_held_out_documents_are_the_last_and_never_trained_on(make_data: MakeData) -> None:
    data = make_data(SEVEN)
    source = SequenceSource(data, sequence_length=4, seed=0, held_out=2)
    # 9 tokens are needed; the last document has 8, so the last two are held out.
    tail = [int(token) for d in (5, 6) for token in data.document(d)]
    assert source.held_out().tolist() == [tail[0:5], tail[4:9]]
    trained = set(source.read(0, 3 * source.per_epoch).ravel().tolist())
    assert trained == {*b"abcde", data.eod}


def test_nothing_held_out_is_an_empty_array(make_data: MakeData) -> None:
    source = SequenceSource(make_data(SEVEN), sequence_length=4, seed=0)
    assert source.held_out().shape == (0, 5)


def test_too_little_data_says_so(make_data: MakeData) -> None:
    data = make_data(SEVEN)
    with pytest.raises(
        DataError, match=r"35 tokens in 7 documents hold no training sequence of 35"
    ):
        SequenceSource(data, sequence_length=35, seed=0)
    with pytest.raises(
        DataError, match=r"sequence of 4 tokens beside 8 held-out ones; .*sequences"
    ):
        SequenceSource(data, sequence_length=4, seed=0, held_out=8)
    with pytest.raises(DataError, match=r"beside 99 held-out ones"):
        SequenceSource(data, sequence_length=4, seed=0, held_out=99)
