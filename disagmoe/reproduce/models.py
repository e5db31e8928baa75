"""The three models of the paper's table 2.

As two reviews relay them: DeepSeek-MoE visits 4 of 64 experts there, with neither shared experts
nor a dense first layer (the public 16B model visits 6 and 2 shared ones). What the table leaves
out, heads and vocabularies, is that of the public models (`configs/models`); but it names no
sliding windows, and the paper's attention costs a s^2 + b s in every layer, so that every layer of
GPT-OSS sees all keys here (the public one has windows of 128 in every other layer).
"""

from disagmoe.config.model import ModelConfig

DEEPSEEK_MOE = ModelConfig(
    family="deepseek",
    vocab_size=102400,
    hidden=2048,
    layers=28,
    heads=16,
    kv_heads=16,
    head_dim=128,
    experts=64,
    top_k=4,
    expert_width=1408,
    norm_topk_prob=False,
)
GPT_OSS = ModelConfig(
    family="gpt_oss",
    vocab_size=201088,
    hidden=2880,
    layers=36,
    heads=64,
    kv_heads=8,
    head_dim=64,
    experts=128,
    top_k=4,
    expert_width=2880,
)
QWEN3 = ModelConfig(
    family="qwen3_moe",
    vocab_size=151936,
    hidden=4096,
    layers=94,
    heads=64,
    kv_heads=4,
    head_dim=128,
    experts=128,
    top_k=8,
    expert_width=1536,
)

MODELS: dict[str, ModelConfig] = {
    "DeepSeek-MoE": DEEPSEEK_MOE,
    "GPT-OSS-120B": GPT_OSS,
    "Qwen3-235B": QWEN3,
}
WINDOWED = GPT_OSS.model_copy(update={"window": 128, "full_attention_every": 2})
"""GPT-OSS as it is published."""
LENGTHS = (4096, 8192, 16384, 32768)
