"""How evenly choices fall on experts."""

import pytest

from disagmoe.metrics.load import dead, max_over_mean, variation


@pytest.mark.parametrize(
    ("choices_E", "expected"),
    [
        ((5, 5, 5, 5), (1.0, 0.0, 0)),
        ((0, 0, 0, 8), (4.0, 3**0.5, 3)),
        ((1, 3), (1.5, 0.5, 0)),
        ((0, 0), (0.0, 0.0, 2)),
    ],
)
def test_loads(choices_E: tuple[int, ...], expected: tuple[float, float, int]) -> None:
    found = (max_over_mean(choices_E), variation(choices_E), dead(choices_E))
    assert found == pytest.approx(expected)
