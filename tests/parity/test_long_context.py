"""32K tokens in one sequence, no power of two, in memory that is linear in them."""

import math

import pytest
import torch

from disagmoe.model.mixing import mix
from tests.unit.runtime.test_families import FAMILIES
from tests.unit.runtime.tiny import batch_of, step, threads, tiny

LENGTH = 32_767


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("family", ["deepseek-v3", "gpt-oss"])
def test_a_step_of_32k_tokens(family: str) -> None:
    sets = FAMILIES[family] | {"model__window": 128} if family == "gpt-oss" else FAMILIES[family]
    config = tiny(
        **sets,
        train__sequence_length=LENGTH,
        train__global_batch_size=1,
        train__precision="fp32",
        parallel__micro_batch_size=1,
    )
    with threads(config, [batch_of(config)], timeout_s=400) as run:
        seen = step(run)
    assert (seen.report.tokens, seen.report.skipped) == (LENGTH, "")
    assert math.isfinite(seen.report.grad_norm)
    assert 2 < seen.report.loss < 5  # of 17 tokens, ln 17 = 2.8 where nothing is known


@pytest.mark.parametrize("window", [0, 128])
def test_the_last_tokens_see_what_a_short_sequence_of_them_would(window: int) -> None:
    """Against the formula for the last query alone, which needs no square of the length."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, 3001, 16, generator=generator) for _ in range(3))
    sinks = torch.tensor([0.7])
    found = mix(q, k, v, scale=0.25, window=window, sinks_H=sinks)[0, 0, -1]
    first = 3001 - window if window else 0
    scores = torch.cat((k[0, 0, first:] @ q[0, 0, -1] * 0.25, sinks))
    torch.testing.assert_close(
        found, scores.softmax(0)[:-1] @ v[0, 0, first:], rtol=1e-4, atol=1e-5
    )
