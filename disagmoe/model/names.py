"""Global names and shapes of all parameters: one name per expert, whatever worker holds it.

Shape letters: V vocabulary, D hidden, C head_dim, H heads, E experts, F expert width.
Matrices are [out, in], as in torch.nn.Linear.
"""

from disagmoe.config.families import traits
from disagmoe.config.model import ModelConfig

EMBED = "embed.weight"
FINAL_NORM = "final_norm.weight"
HEAD = "head.weight"
BALANCE_BIAS = "router.balance_bias"
SWIGLU = ("gate", "up", "down")

Shape = tuple[int, ...]


def embed_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Parameters of the input embedding."""
    return {EMBED: (config.vocab_size, config.hidden)}


def attention_name(layer: int, leaf: str) -> str:
    """Global name of an attention-side weight of `layer`, as `layers.3.attn.q.weight`."""
    return f"layers.{layer}.{leaf}.weight"


def bias_name(layer: int, leaf: str) -> str:
    """Global name of an attention-side bias of `layer`, as `layers.3.attn.q.bias`."""
    return f"layers.{layer}.{leaf}.bias"


def balance_name(layer: int) -> str:
    """Global name of the bias that balances the experts of `layer`."""
    return f"layers.{layer}.{BALANCE_BIAS}"


def layer_of(name: str) -> int:
    """Layer that a tensor belongs to, of a global or local name that begins with one."""
    return int(name.split(".")[1])


def attention_shapes(config: ModelConfig, layer: int) -> dict[str, Shape]:
    """Parameters of `layer` on the attention side: both norms, attention, and the router with
    shared experts or, in a dense layer, its SwiGLU."""
    shapes: dict[str, Shape] = {attention_name(layer, "attn_norm"): (config.hidden,)}
    shapes |= _latent_shapes(config, layer) if config.kv_lora_rank else _mixing(config, layer)
    shapes[attention_name(layer, "moe_norm")] = (config.hidden,)
    if layer < config.dense_layers:
        return shapes | _swiglu(config, layer, "dense", config.dense_width)
    shapes[attention_name(layer, "router")] = (config.experts, config.hidden)
    if traits(config).expert_bias:
        shapes[bias_name(layer, "router")] = (config.experts,)
    return shapes | shared_shapes(config, layer)


def _mixing(config: ModelConfig, layer: int) -> dict[str, Shape]:
    """Grouped-query attention."""
    q_width, kv_width = config.heads * config.head_dim, config.kv_heads * config.head_dim
    own = traits(config)
    shapes: dict[str, Shape] = {}
    for leaf, width in (("attn.q", q_width), ("attn.k", kv_width), ("attn.v", kv_width)):
        shapes[attention_name(layer, leaf)] = (width, config.hidden)
        if own.qkv_bias:
            shapes[bias_name(layer, leaf)] = (width,)
    shapes[attention_name(layer, "attn.o")] = (config.hidden, q_width)
    if own.output_bias:
        shapes[bias_name(layer, "attn.o")] = (config.hidden,)
    if own.qk_norm != "none":
        heads = own.qk_norm == "heads"
        shapes[attention_name(layer, "attn.q_norm")] = (config.head_dim if heads else q_width,)
        shapes[attention_name(layer, "attn.k_norm")] = (config.head_dim if heads else kv_width,)
    if own.sinks:
        shapes[attention_name(layer, "attn.sinks")] = (config.heads,)
    return shapes


def _latent_shapes(config: ModelConfig, layer: int) -> dict[str, Shape]:
    """Multi-head latent attention."""
    hidden, queries = config.hidden, config.heads * config.qk_head_dim
    q_rank, kv_rank = config.q_lora_rank, config.kv_lora_rank
    up = config.heads * (config.qk_nope_head_dim + config.head_dim)
    leaves: dict[str, Shape] = {"attn.q": (queries, hidden)}
    if q_rank:
        leaves = {
            "attn.q_down": (q_rank, hidden),
            "attn.q_down_norm": (q_rank,),
            "attn.q_up": (queries, q_rank),
        }
    leaves |= {
        "attn.kv_down": (kv_rank + config.qk_rope_head_dim, hidden),
        "attn.kv_down_norm": (kv_rank,),
        "attn.kv_up": (up, kv_rank),
        "attn.o": (hidden, config.heads * config.head_dim),
    }
    return {attention_name(layer, leaf): shape for leaf, shape in leaves.items()}


def shared_shapes(config: ModelConfig, layer: int) -> dict[str, Shape]:
    """Parameters of the shared experts of `layer`, on whichever side they are."""
    if not config.shared_width or layer < config.dense_layers:
        return {}
    shapes = _swiglu(config, layer, "shared", config.shared_width)
    if traits(config).shared_gate:
        shapes[attention_name(layer, "shared.switch")] = (1, config.hidden)
    return shapes


def _swiglu(config: ModelConfig, layer: int, part: str, width: int) -> dict[str, Shape]:
    inner, outer = (width, config.hidden), (config.hidden, width)
    shapes = zip(SWIGLU, (inner, inner, outer), strict=True)
    return {attention_name(layer, f"{part}.{leaf}"): shape for leaf, shape in shapes}


def balance_shapes(config: ModelConfig, layer: int) -> dict[str, Shape]:
    """The bias that balances the experts of `layer`: it is kept and saved, but no parameter."""
    if not traits(config).balance_bias or layer < config.dense_layers:
        return {}
    return {balance_name(layer): (config.experts,)}


def expert_name(layer: int, expert: int, leaf: str) -> str:
    """Global name of one matrix of one expert, as `layers.3.experts.7.gate.weight`."""
    return f"layers.{layer}.experts.{expert}.{leaf}.weight"


def expert_bias_name(layer: int, expert: int, leaf: str) -> str:
    """Global name of one bias of one expert, as `layers.3.experts.7.gate.bias`."""
    return f"layers.{layer}.experts.{expert}.{leaf}.bias"


def expert_shapes(config: ModelConfig, layer: int, expert: int) -> dict[str, Shape]:
    """Parameters of one expert: gate and up [F, D], down [D, F], and their biases."""
    width, hidden = config.expert_width, config.hidden
    outputs = dict(zip(SWIGLU, (width, width, hidden), strict=True))
    shapes: dict[str, Shape] = {
        expert_name(layer, expert, leaf): (rows, width + hidden - rows)
        for leaf, rows in outputs.items()
    }
    if traits(config).expert_bias:
        shapes |= {expert_bias_name(layer, expert, leaf): (n,) for leaf, n in outputs.items()}
    return shapes


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
        for expert in range(config.experts if layer >= config.dense_layers else 0):
            shapes |= expert_shapes(config, layer, expert)
    return shapes | head_shapes(config)


def saved_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Everything that a checkpoint of the network holds: its parameters, and the biases that
    balance its experts."""
    shapes = global_shapes(config)
    for layer in range(config.layers):
        shapes |= balance_shapes(config, layer)
    return shapes


def is_norm(name: str) -> bool:
    """Whether a global name is the weight of a norm: starts at 1 and has no weight decay."""
    return name.removesuffix(".weight").endswith("norm")


def starts_at_zero(name: str) -> bool:
    """Whether a global name is a bias."""
    return name.endswith("bias")
