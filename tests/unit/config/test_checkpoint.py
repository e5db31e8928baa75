import pytest

from disagmoe.config.checkpoint import CheckpointConfig


@pytest.mark.parametrize(
    ("interval", "at_end", "saved"),
    [(0, True, [6]), (0, False, []), (4, True, [4, 6]), (3, False, [3, 6]), (3, True, [3, 6])],
)
def test_steps_that_are_saved_by_number(interval: int, at_end: bool, saved: list[int]) -> None:
    config = CheckpointConfig(interval_steps=interval, at_end=at_end)
    assert [step + 1 for step in range(6) if config.saves_after(step, 6)] == saved
