"""Every schedule by its values, and the degenerate ones."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagmoe.config.train import LrScheduleConfig, OptimizerConfig, TrainConfig
from disagmoe.optim.lr import learning_rate


def rates(steps: int, **schedule: Any) -> list[float]:
    train = TrainConfig(
        steps=steps,
        global_batch_size=1,
        sequence_length=1,
        optimizer=OptimizerConfig(lr=1.0),
        lr_schedule=LrScheduleConfig(**schedule),
    )
    return [learning_rate(step, train) for step in range(steps)]


HALF_ROOT = 0.5**0.5


@pytest.mark.parametrize(
    ("steps", "schedule", "expected"),
    [
        (4, {"kind": "constant"}, [1, 1, 1, 1]),
        (4, {"kind": "constant", "warmup_steps": 2}, [0.5, 1, 1, 1]),
        (5, {"min_lr_ratio": 0.0}, [1, (1 + HALF_ROOT) / 2, 0.5, (1 - HALF_ROOT) / 2, 0]),
        (5, {"min_lr_ratio": 0.2, "warmup_steps": 1}, [1, 0.4 * (1 + HALF_ROOT) + 0.2, 0.6,
                                                       0.4 * (1 - HALF_ROOT) + 0.2, 0.2]),
        (8, {"warmup_steps": 4, "min_lr_ratio": 0.0},
         [0.25, 0.5, 0.75, 1, (1 + HALF_ROOT) / 2, 0.5, (1 - HALF_ROOT) / 2, 0]),
        (6, {"kind": "wsd", "warmup_steps": 2, "decay_steps": 2, "min_lr_ratio": 0.1},
         [0.5, 1, 1, 1, 0.55, 0.1]),
        # Degenerate: one step, warm-up as long as the run or longer, no fall, falls that overlap.
        (1, {}, [1]),
        (1, {"warmup_steps": 1}, [1]),
        (1, {"kind": "wsd", "decay_steps": 1, "min_lr_ratio": 0.1}, [0.1]),
        (3, {"warmup_steps": 3}, [1 / 3, 2 / 3, 1]),
        (3, {"warmup_steps": 6}, [1 / 6, 2 / 6, 3 / 6]),
        (3, {"kind": "wsd", "decay_steps": 0}, [1, 1, 1]),
        (4, {"kind": "wsd", "warmup_steps": 4, "decay_steps": 4, "min_lr_ratio": 0.0},
         [0.25, 0.5, 0.25, 0]),
        (2, {"kind": "wsd", "decay_steps": 4, "min_lr_ratio": 0.0}, [0.25, 0]),
        (3, {"min_lr_ratio": 1.0}, [1, 1, 1]),
    ],
)  # fmt: skip
def test_values(steps: int, schedule: dict[str, Any], expected: list[float]) -> None:
    assert rates(steps, **schedule) == pytest.approx(expected, abs=1e-15)


def test_the_peak_comes_from_the_optimizer() -> None:
    train = TrainConfig(steps=2, global_batch_size=1, sequence_length=1)
    assert [learning_rate(step, train) for step in (0, 1, 2, 50)] == pytest.approx(
        [3e-4, 3e-5, 3e-5, 3e-5]
    )


@given(
    st.sampled_from(["cosine", "wsd", "constant"]),
    st.integers(1, 40),
    st.integers(0, 50),
    st.integers(0, 50),
    st.floats(0, 1),
)
@settings(derandomize=True, database=None)
def test_any_schedule_is_positive_bounded_and_falls_only_after_rising(
    kind: str, steps: int, warmup: int, decay: int, ratio: float
) -> None:
    values = rates(steps, kind=kind, warmup_steps=warmup, decay_steps=decay, min_lr_ratio=ratio)
    peak = values.index(max(values))
    assert all(0 <= value <= 1 for value in values)
    assert values[:peak] == sorted(values[:peak])
    slack = 1e-12
    assert all(a + slack >= b for a, b in zip(values[peak:], values[peak + 1 :], strict=False))
