from hypothesis import given
from hypothesis import strategies as st

from disagmoe.checkpoint.slices import Slice, uncovered

BOUNDS = st.tuples(st.integers(0, 20), st.integers(0, 20)).map(lambda pair: tuple(sorted(pair)))


@given(BOUNDS, st.lists(BOUNDS, max_size=5))
def test_what_no_part_covers_is_found(whole: tuple[int, int], parts: list[tuple[int, int]]) -> None:
    parts = [(start, stop) for start, stop in parts if start < stop]
    found = [at for start, stop in uncovered(*whole, parts) for at in range(start, stop)]
    covered = {at for start, stop in parts for at in range(start, stop)}
    assert found == [at for at in range(*whole) if at not in covered]


def test_a_whole_parameter_is_one() -> None:
    assert Slice("a", (2, 3), 0, 6).is_whole
    assert not Slice("a", (2, 3), 0, 5).is_whole
    assert not Slice("a", (2, 3), 1, 6).is_whole
