"""Where every local tensor of a whole model lies in a Hugging Face Transformers model.

Transformers 5 stacks the experts of a layer in memory as we do, `gate_up_proj` [E, 2F, D] (gate
first) and `down_proj` [E, D, F]; Mixtral and Qwen3-MoE share every name.
"""

from disagmoe.config.model import ModelConfig
from disagmoe.model import names, partition

_LEAVES = {
    "attn_norm": "input_layernorm",
    "attn.q": "self_attn.q_proj",
    "attn.k": "self_attn.k_proj",
    "attn.v": "self_attn.v_proj",
    "attn.o": "self_attn.o_proj",
    "attn.q_norm": "self_attn.q_norm",
    "attn.k_norm": "self_attn.k_norm",
    "moe_norm": "post_attention_layernorm",
    "router": "mlp.gate",
}
_QK_NORMS = ("attn.q_norm", "attn.k_norm")


def hf_names(config: ModelConfig) -> dict[str, str]:
    """Return the Transformers name of every tensor of `partition.model_tensors`, by local name."""
    table = {names.EMBED: "model.embed_tokens.weight", names.FINAL_NORM: "model.norm.weight"}
    if not config.tied_embeddings:
        table[names.HEAD] = "lm_head.weight"
    for layer in range(config.layers):
        theirs = f"model.layers.{layer}"
        for leaf, hf_leaf in _LEAVES.items():
            if leaf in _QK_NORMS and not names.has_qk_norm(config):
                continue
            table[names.attention_name(layer, leaf)] = f"{theirs}.{hf_leaf}.weight"
        table[partition.gate_up_name(layer)] = f"{theirs}.mlp.experts.gate_up_proj"
        table[partition.down_name(layer)] = f"{theirs}.mlp.experts.down_proj"
    return table
