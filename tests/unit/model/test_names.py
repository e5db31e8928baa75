import pytest

from disagmoe.config.model import ModelConfig
from disagmoe.model.names import global_shapes, head_shapes, is_norm


def small(**changes: object) -> ModelConfig:
    values: dict[str, object] = {
        "family": "mixtral",
        "vocab_size": 11,
        "hidden": 8,
        "layers": 1,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 6,
        "experts": 2,
        "top_k": 1,
        "expert_width": 5,
    }
    return ModelConfig.model_validate(values | changes)


EXPERTS = {
    "layers.0.experts.0.gate.weight": (5, 8),
    "layers.0.experts.0.up.weight": (5, 8),
    "layers.0.experts.0.down.weight": (8, 5),
    "layers.0.experts.1.gate.weight": (5, 8),
    "layers.0.experts.1.up.weight": (5, 8),
    "layers.0.experts.1.down.weight": (8, 5),
}


def test_names_and_shapes_of_a_whole_network_in_order() -> None:
    assert list(global_shapes(small()).items()) == [
        ("embed.weight", (11, 8)),
        ("layers.0.attn_norm.weight", (8,)),
        ("layers.0.attn.q.weight", (24, 8)),
        ("layers.0.attn.k.weight", (12, 8)),
        ("layers.0.attn.v.weight", (12, 8)),
        ("layers.0.attn.o.weight", (8, 24)),
        ("layers.0.moe_norm.weight", (8,)),
        ("layers.0.router.weight", (2, 8)),
        *EXPERTS.items(),
        ("final_norm.weight", (8,)),
        ("head.weight", (11, 8)),
    ]


def test_qwen3_adds_norms_of_one_head() -> None:
    added = dict(
        set(global_shapes(small(family="qwen3_moe")).items()) - set(global_shapes(small()).items())
    )
    assert added == {"layers.0.attn.q_norm.weight": (6,), "layers.0.attn.k_norm.weight": (6,)}


def test_tied_embeddings_have_no_head_matrix() -> None:
    tied = small(tied_embeddings=True)
    assert "head.weight" not in global_shapes(tied)
    assert head_shapes(tied) == {"final_norm.weight": (8,), "embed.weight": (11, 8)}


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
def test_norms_are_the_vectors(family: str) -> None:
    shapes = global_shapes(small(family=family))
    assert {n for n in shapes if is_norm(n)} == {n for n, s in shapes.items() if len(s) == 1}
