"""FLOPs against published figures, and against counting one by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagmoe.costs import flops
from tests.unit.costs.public_models import MODELS

V3 = MODELS["deepseek-v3"]
QWEN = MODELS["qwen3-235b-a22b"]


@given(st.integers(1, 300), st.integers(0, 300))
def test_mean_keys_count_one_by_one(length, window):
    seen = [min(place, window or length) for place in range(1, length + 1)]
    assert flops.mean_keys(length, window) == pytest.approx(sum(seen) / length, rel=1e-12)


# Megatron-Bridge's performance tables: model TFLOP/s per GPU over tokens/s per GPU, which is its
# FLOPs per token (releases 26.06, and 25.11 for DeepSeek-V3 without multi-token prediction)
@pytest.mark.parametrize(
    ("name", "tflops", "tokens_per_s", "tolerance"),
    [
        ("qwen3-235b-a22b", 1335, 9015, 0.01),
        ("qwen3-30b-a3b", 1041, 45275, 0.01),
        ("deepseek-v3", 1088, 4357, 0.01),
        ("gpt-oss-120b", 1081, 33166, 0.01),
        ("kimi-k2", 1099, 5372, 0.02),
    ],
)
def test_megatron_counts_as_many_flops_per_token(name, tflops, tokens_per_s, tolerance):
    counted = flops.model_flops(MODELS[name], 4096)
    assert counted == pytest.approx(tflops * 1e12 / tokens_per_s, rel=tolerance)


def test_deepseek_v3_on_2048_h800():
    """272.80 B tokens a day: 385 TFLOP/s causal and 432 not (arXiv:2505.09343 table 4)."""
    tokens_per_s = 272.80e9 / 86400 / 2048
    causal = tokens_per_s * flops.model_flops(V3, 4096)
    whole = tokens_per_s * flops.model_flops(V3, 4096, causal=False)
    assert (causal / 1e12, whole / 1e12) == pytest.approx((385, 432), rel=0.01)


def test_deepseek_by_gpu_hours():
    """180 K H800 hours per T tokens for V3 (38.9 % of 989 TFLOP/s with 1,543 tokens/s), 172.8 K
    for V2: 250 TFLOP/s (README of DeepSeek-V3, report of V2)."""
    per_gpu = {name: 1e12 / (hours * 3600) for name, hours in (("v3", 180e3), ("v2", 172.8e3))}
    v3 = per_gpu["v3"] * flops.model_flops(V3, 4096)
    v2 = per_gpu["v2"] * flops.model_flops(MODELS["deepseek-v2"], 4096)
    assert (v3 / 989e12, v2 / 1e12) == pytest.approx((0.389, 250), rel=0.01)


# Megatron-MoE-ModelZoo: Qwen3-235B on 256 H100, 2048 sequences of 4096 tokens per step
@pytest.mark.parametrize(("step_s", "tflops"), [(19.7, 245), (17.6, 276), (24.2, 200), (29.0, 167)])
def test_megatron_steps_of_qwen3_235b(step_s, tflops):
    tokens_per_s = 2048 * 4096 / step_s / 256
    assert tokens_per_s * flops.model_flops(QWEN, 4096) / 1e12 == pytest.approx(tflops, rel=0.01)


# Megatron-Bridge 26.04 on H100: tokens/s per GPU and model TFLOP/s. Its count of GPT-OSS before
# 26.06 leaves out a sixth (27.1 against 32.6 GFLOP per token afterwards)
@pytest.mark.parametrize(
    ("name", "tokens_per_s", "tflops"),
    [
        ("qwen3-235b-a22b", 1712, 253),
        ("qwen3-30b-a3b", 8960, 206),
        ("gpt-oss-120b", 5824, 158 * 32.6 / 27.1),
        ("gpt-oss-120b", 5993, 163 * 32.6 / 27.1),
    ],
)
def test_megatron_bridge_on_h100(name, tokens_per_s, tflops):
    counted = tokens_per_s * flops.model_flops(MODELS[name], 4096) / 1e12
    assert counted == pytest.approx(tflops, rel=0.01)


def test_steady_chunk_of_deepseek_v3():
    """4 MoE layers forward and backward of 4,096 tokens per GPU in 129.0 ms are 510 TFLOP/s
    (github.com/deepseek-ai/profile-data, train.json)."""
    layer = flops.attention_side(V3, 4096) + flops.routed(V3)
    assert 4 * 3 * layer * 4096 / 129.0e-3 / 1e12 == pytest.approx(510, rel=0.005)


def test_backward_of_flash_attention_computes_the_scores_again():
    assert flops.flash_backward_ratio(QWEN) == 2.5
    assert flops.flash_backward_ratio(V3) == 2.6


# MFLOP per token and layer at 4K: projections, scores, router, routed, shared
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("deepseek-moe-16b", (33.6, 16.8, 0.26, 103.8, 34.6)),
        ("deepseek-v2-lite", (27.5, 21.0, 0.26, 103.8, 34.6)),
        ("deepseek-v3", (374.2, 167.8, 3.67, 704.6, 88.1)),
        ("qwen3-235b-a22b", (142.6, 67.1, 1.05, 302.0, 0.0)),
        ("gpt-oss-120b", (53.1, 17.8, 0.74, 199.1, 0.0)),
        ("mixtral-8x7b", (83.9, 33.6, 0.07, 704.6, 0.0)),
        ("glm-4.5", (272.6, 100.7, 1.64, 377.5, 47.2)),
    ],
)
def test_parts_of_a_layer(name, expected):
    model = MODELS[name]
    layers = range(model.dense_layers, model.layers)
    scores = [flops.scores(model, 4096, model.window_of(layer)) for layer in layers]
    parts = (
        flops.projections(model),
        sum(scores) / len(scores),
        flops.router(model),
        flops.routed(model),
        flops.swiglu(model, model.shared_width),
    )
    assert [part / 1e6 for part in parts] == pytest.approx(expected, abs=0.06)
    assert flops.attention_side(model, 4096) == pytest.approx(sum(parts) - parts[3])
    assert flops.attention_side(model, 4096, shared=False) == pytest.approx(sum(parts[:3]))


def test_windows_alternate_from_the_first_layer():
    model = MODELS["gpt-oss-20b"]
    assert [model.window_of(layer) for layer in range(4)] == [128, 0, 128, 0]
