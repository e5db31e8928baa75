"""Curves against measurements (aiconfigurator-core 1.3.0rc20, H100, bf16; InferSim, H800), with the
errors that README.md states."""

import pytest

from disagmoe.costs.calibration import H800_KERNEL, H800_PAPERFIT, calibration
from disagmoe.costs.hardware import A100, H100
from disagmoe.costs.kernels import Machine, Product, flash_rate, grouped_s, moved_s, product_s
from disagmoe.errors import ConfigError

MACHINE = Machine(hardware=H100, calibration=H800_KERNEL, precision="bf16")
PAPER = Machine(hardware=H100, calibration=H800_PAPERFIT, precision="bf16")

ROWS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
# TFLOP/s by (outer, inner) and rows
DENSE = {
    (4096, 2048): (115, 230, 392, 586, 686, 719, 748, 767, 760, 770),
    (4096, 4096): (136, 266, 459, 680, 757, 781, 788, 800, 788, 770),
    (4096, 7168): (132, 282, 489, 712, 773, 789, 759, 806, 792, 786),
    (7168, 2048): (133, 266, 473, 662, 647, 767, 767, 769, 776, 773),
    (8192, 8192): (170, 329, 609, 765, 720, 793, 817, 782, 780, 785),
    (2048, 768): (50, 98, 179, 260, 429, 525, 602, 623, 687, 715),
}
TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
# TFLOP/s of the whole block by (hidden, width), experts per GPU, and tokens per expert
GROUPED = {
    (4096, 1536, 16): (40, 76, 141, 243, 416, 518, 592),
    (4096, 1536, 8): (36, 66, 126, 202, 352, 492, 547),
    (2048, 768, 16): (30, 55, 99, 169, 252, 340, 386),
    (2816, 704, 16): (33, 60, 104, 180, 262, 340, 385),
    (4096, 2048, 32): (44, 83, 156, 274, 463, 582),
    (6144, 16384, 1): (42, 79, 147, 279, 515, 691, 725, 812, 804),
    (4096, 14336, 1): (37, 71, 138, 241, 422, 600, 760, 782, 791),
}


def errors(pairs):
    return [abs(got / want - 1) for got, want in pairs]


def test_dense_products():
    pairs = []
    for (outer, inner), rates in DENSE.items():
        for rows, rate in zip(ROWS, rates, strict=True):
            seconds = product_s(MACHINE, H800_KERNEL.projection, rows, Product(inner, outer))
            pairs.append((2 * rows * inner * outer / seconds / 1e12, rate))
    found = errors(pairs)
    assert max(found) < 0.15
    assert sum(found) / len(found) < 0.04


def test_rate_by_inner_width():
    for inner, rate in {512: 575, 1024: 681, 2048: 745, 4096: 782, 7168: 796}.items():
        seconds = product_s(MACHINE, H800_KERNEL.projection, 8192, Product(inner, 4096))
        assert 2 * 8192 * inner * 4096 / seconds / 1e12 == pytest.approx(rate, rel=0.13)


def test_grouped_experts():
    pairs = []
    for (hidden, width, experts), rates in GROUPED.items():
        for tokens, rate in zip(TOKENS, rates, strict=False):
            count = experts * tokens
            seconds = grouped_s(MACHINE, pairs=count, experts=experts, hidden=hidden, width=width)
            pairs.append((6 * count * hidden * width / seconds / 1e12, rate))
    assert len(pairs) == 52
    found = errors(pairs)
    assert max(found) < 0.11
    assert sum(found) / len(found) < 0.045


@pytest.mark.parametrize(
    ("head_dim", "rates", "worst"),
    [
        (128, {1024: 306, 2048: 416, 4096: 558, 8192: 643, 12288: 665, 16384: 623}, 0.085),
        (128, {1024: 368, 4096: 622, 8192: 605, 16384: 618, 32768: 577}, 0.18),  # MLA, InferSim
        (64, {2048: 318, 4096: 419, 8192: 484, 12288: 487, 16384: 515}, 0.06),
        (64, {1024: 193}, 0.18),
    ],
)
def test_flash_attention(head_dim, rates, worst):
    for length, rate in rates.items():
        assert flash_rate(MACHINE, head_dim, length) / 1e12 == pytest.approx(rate, rel=worst)


def test_flash_attention_with_a_window_of_128_keys():
    rates = {2048: 79, 4096: 80, 8192: 87, 12288: 85, 16384: 88}
    for length, rate in rates.items():
        assert flash_rate(MACHINE, 64, length, 128) / 1e12 == pytest.approx(rate, rel=0.08)
    assert flash_rate(MACHINE, 64, 1024, 128) / 1e12 == pytest.approx(66, rel=0.18)
    assert flash_rate(MACHINE, 64, 100, 128) == flash_rate(MACHINE, 64, 100)


def test_widths_in_between_are_interpolated():
    narrow, wide = (flash_rate(MACHINE, head_dim, 4096) for head_dim in (64, 128))
    assert narrow < flash_rate(MACHINE, 96, 4096) < wide
    assert flash_rate(MACHINE, 32, 4096) == narrow
    assert flash_rate(MACHINE, 256, 4096) == wide


def test_flat_rates_know_neither_memory_nor_launches():
    assert moved_s(PAPER, 1e9, kernels=5) == 0
    seconds = product_s(PAPER, H800_PAPERFIT.dense, 64, Product(64, 64))
    assert seconds == pytest.approx(2 * 64**3 / (0.348 * 989e12))
    seconds = grouped_s(PAPER, pairs=64, experts=8, hidden=64, width=32)
    assert seconds == pytest.approx(6 * 64 * 64 * 32 / (0.348 * 989e12))
    assert flash_rate(PAPER, 64, 4096, 128) == pytest.approx(0.73 * 0.348 * 989e12)


def test_rates_follow_the_machine():
    other = Machine(hardware=A100, calibration=H800_KERNEL, precision="bf16")
    ratio = flash_rate(other, 128, 4096) / flash_rate(MACHINE, 128, 4096)
    assert ratio == pytest.approx(312 / 989)
    assert moved_s(other, 0.8 * 2040e9, kernels=0) == pytest.approx(1)
    exact = Machine(hardware=H100, calibration=H800_KERNEL, precision="fp32")
    assert (exact.element_bytes, exact.peak_flops) == (4, 67e12)


def test_nothing_to_do_takes_no_time():
    assert product_s(MACHINE, H800_KERNEL.dense, 0, Product(8, 8)) == 0
    assert grouped_s(MACHINE, pairs=0, experts=4, hidden=8, width=8) == 0


def test_an_unknown_calibration_is_answered_with_those_that_are_known():
    with pytest.raises(ConfigError) as caught:
        calibration("h900")
    assert str(caught.value) == (
        "unknown calibration 'h900'; known: h800-kernel, h800-paperfit, h800-paperstep, cpu-kernel"
    )
