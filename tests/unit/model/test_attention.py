import pytest
import torch

from disagmoe.config.model import ModelConfig
from disagmoe.model.attention import attention
from disagmoe.model.init import initial_store
from disagmoe.model.norm import rms_norm
from disagmoe.model.params import AttentionParams
from disagmoe.model.partition import model_tensors
from disagmoe.model.rope import Rope


def setup(family: str, kv_heads: int) -> tuple[ModelConfig, AttentionParams, Rope]:
    config = ModelConfig.model_validate(
        {
            "family": family,
            "vocab_size": 3,
            "hidden": 12,
            "layers": 1,
            "heads": 4,
            "kv_heads": kv_heads,
            "head_dim": 6,
            "experts": 1,
            "top_k": 1,
            "expert_width": 1,
        }
    )
    store = initial_store(model_tensors(config), seed=0, std=0.3, dtype=torch.float64)
    params = AttentionParams.read(store, config, 0)
    return config, params, Rope.of(config, 9, torch.float64)


def plain(
    config: ModelConfig, params: AttentionParams, rope: Rope, n_SD: torch.Tensor
) -> torch.Tensor:
    """One sequence, head by head, with an explicit mask."""
    length, size = n_SD.shape[0], config.head_dim
    outputs = []
    for head in range(config.heads):
        shared = head // (config.heads // config.kv_heads)
        q = n_SD @ params.mixing.q_QD[head * size : (head + 1) * size].T
        k = n_SD @ params.mixing.k_WD[shared * size : (shared + 1) * size].T
        v = n_SD @ params.mixing.v_WD[shared * size : (shared + 1) * size].T
        if params.mixing.q_norm is not None and params.mixing.k_norm is not None:
            q = rms_norm(q, params.mixing.q_norm, config.norm_eps)
            k = rms_norm(k, params.mixing.k_norm, config.norm_eps)
        q, k = rope.rotate(q[None, None])[0, 0], rope.rotate(k[None, None])[0, 0]
        mask = torch.ones(length, length).tril().bool()
        scores = (q @ k.T / size**0.5).masked_fill(~mask, float("-inf"))
        outputs.append(scores.softmax(-1) @ v)
    return torch.cat(outputs, dim=-1) @ params.mixing.o_DQ.T


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
@pytest.mark.parametrize("length", [1, 7])
def test_equals_the_formula_head_by_head(family: str, kv_heads: int, length: int) -> None:
    config, params, rope = setup(family, kv_heads)
    n = torch.randn(3, length, 12, dtype=torch.float64)
    expected = torch.stack([plain(config, params, rope, sequence) for sequence in n])
    torch.testing.assert_close(attention(params, n, config, rope), expected)


def test_later_tokens_and_other_sequences_are_not_seen() -> None:
    config, params, rope = setup("mixtral", 2)
    n = torch.randn(2, 8, 12, dtype=torch.float64)
    changed = n.clone()
    changed[0, 5:] += 1.0
    before, after = attention(params, n, config, rope), attention(params, changed, config, rope)
    torch.testing.assert_close(after[0, :5], before[0, :5])
    torch.testing.assert_close(after[1], before[1])
    assert not torch.allclose(after[0, 5], before[0, 5])


def test_no_sequences_give_an_empty_result_and_zero_gradients() -> None:
    config, params, rope = setup("qwen3_moe", 2)
    weight = params.mixing.q_QD.requires_grad_()
    out = attention(params, torch.zeros(0, 5, 12, dtype=torch.float64), config, rope)
    assert out.shape == (0, 5, 12)
    (grad,) = torch.autograd.grad(out, weight, torch.zeros_like(out))
    assert torch.equal(grad, torch.zeros_like(weight))
