"""Global names and shapes of all parameters: one name per expert, whatever worker holds it.

Shape letters: V vocabulary, D hidden, C head_dim, E experts, F expert width.
Matrices are [out, in], as in torch.nn.Linear.
"""

from disagmoe.config.model import ModelConfig

EMBED = "embed.weight"
FINAL_NORM = "final_norm.weight"
HEAD = "head.weight"

Shape = tuple[int, ...]


def embed_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Parameters of the input embedding."""
    return {EMBED: (config.vocab_size, config.hidden)}


def attention_name(layer: int, leaf: str) -> str:
    """Global name of an attention-side parameter of `layer`, as `layers.3.attn.q.weight`."""
    return f"layers.{layer}.{leaf}.weight"


def attention_shapes(config: ModelConfig, layer: int) -> dict[str, Shape]:
    """Parameters of `layer` on the attention side: both norms, attention and router."""
    q_width, kv_width = config.heads * config.head_dim, config.kv_heads * config.head_dim
    leaves: dict[str, Shape] = {
        "attn_norm": (config.hidden,),
        "attn.q": (q_width, config.hidden),
        "attn.k": (kv_width, config.hidden),
        "attn.v": (kv_width, config.hidden),
        "attn.o": (config.hidden, q_width),
    }
    if has_qk_norm(config):
        leaves |= {"attn.q_norm": (config.head_dim,), "attn.k_norm": (config.head_dim,)}
    leaves |= {"moe_norm": (config.hidden,), "router": (config.experts, config.hidden)}
    return {attention_name(layer, leaf): shape for leaf, shape in leaves.items()}


def expert_name(layer: int, expert: int, leaf: str) -> str:
    """Global name of one matrix of one expert, as `layers.3.experts.7.gate.weight`."""
    return f"layers.{layer}.experts.{expert}.{leaf}.weight"


def expert_shapes(config: ModelConfig, layer: int, expert: int) -> dict[str, Shape]:
    """Parameters of one expert: gate and up [F, D], down [D, F]."""
    inner, outer = (config.expert_width, config.hidden), (config.hidden, config.expert_width)
    return {
        expert_name(layer, expert, "gate"): inner,
        expert_name(layer, expert, "up"): inner,
        expert_name(layer, expert, "down"): outer,
    }


def head_name(config: ModelConfig) -> str:
    """Global name of the LM head's matrix [V, D]: the embedding's when the two are tied."""
    return EMBED if config.tied_embeddings else HEAD


def head_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Parameters that the head needs: final norm and LM head."""
    return {FINAL_NORM: (config.hidden,), head_name(config): (config.vocab_size, config.hidden)}


def global_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Every parameter of the network once, in the order in which a token meets them."""
    shapes = embed_shapes(config)
    for layer in range(config.layers):
        shapes |= attention_shapes(config, layer)
        for expert in range(config.experts):
            shapes |= expert_shapes(config, layer, expert)
    return shapes | head_shapes(config)


def has_qk_norm(config: ModelConfig) -> bool:
    """Whether queries and keys are normalised per head."""
    return config.family == "qwen3_moe"


def is_norm(name: str) -> bool:
    """Whether a global name is the weight of a norm: starts at 1 and has no weight decay."""
    return name.removesuffix(".weight").endswith("norm")
