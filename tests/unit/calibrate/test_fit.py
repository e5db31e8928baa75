"""Fits give back what was put in, and are never negative."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagmoe.calibrate.fit import message_work, nonnegative, op_fit, saturating
from disagmoe.costs.calibration import MessageWork, OpFit

TIMES = st.floats(1e-4, 10)


@given(st.lists(TIMES, min_size=3, max_size=8, unique=True), st.floats(0.1, 5), st.floats(0.0, 1))
def test_an_op_that_follows_its_kernels_is_found(kernels, factor, fixed_s):
    made = OpFit(factor=factor, fixed_s=fixed_s)
    found = op_fit(kernels, [made(one) for one in kernels])
    for one in kernels:
        assert found(one) == pytest.approx(made(one), rel=1e-6)


@given(
    st.lists(st.tuples(TIMES, TIMES, TIMES), min_size=1, max_size=6),
)
def test_factors_are_never_negative_and_better_than_one_column(points):
    first, second, times = (list(column) for column in zip(*points, strict=True))

    def error(factors):
        a, b = factors
        parts = zip(first, second, times, strict=True)
        return sum(((a * x + b * y) / t - 1) ** 2 for x, y, t in parts)

    both = nonnegative([first, second], times)
    assert min(both) >= 0
    (alone,) = nonnegative([first], times)
    assert error(both) <= error((alone, 0.0)) + 1e-9


def test_an_op_without_work_takes_no_time():
    assert OpFit(factor=2.0, fixed_s=1.0)(0.0) == 0.0


@given(st.floats(0.05, 1), st.floats(0, 3000))
def test_a_saturating_rate_is_found(share, half):
    sizes = [256, 512, 1024, 2048]
    rates = [1e12 * share * size / (size + half) for size in sizes]
    found = saturating(sizes, rates, 1e12)
    assert found == pytest.approx((share, half), rel=1e-6, abs=1e-6)


def test_a_rate_that_only_grows_has_no_half_size():
    sizes = [1, 2, 4]
    assert saturating(sizes, [1e9, 2e9, 4e9], 1e10) == (0.2, 0.0)


@given(st.floats(1e-5, 1e-2), st.floats(1e-10, 1e-7))
def test_what_messages_take_is_found(message_s, byte_s):
    made, sizes = MessageWork(message_s=message_s, byte_s=byte_s), (2**16, 2**18, 2**20)
    found = message_work(sizes, [made(1, size) for size in sizes])
    assert [found(1, size) for size in sizes] == pytest.approx([made(1, size) for size in sizes])


def test_messages_give_nothing_back():
    found = message_work([1e4, 1e6], [-1e-3, 2e-3])
    assert found.message_s == pytest.approx(0.0, abs=1e-5)
    assert 0 <= found.byte_s < 1e-8
