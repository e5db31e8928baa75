"""Which setting somebody meant who wrote a name that does not exist."""

from collections.abc import Iterable
from difflib import SequenceMatcher

# Words of other systems that share no word with ours: config.json of Hugging Face Transformers
# (MixtralConfig, Qwen3MoeConfig, DeepseekV3Config, GptOssConfig), its TrainingArguments,
# Megatron-Core's arguments, torchtitan.
ALIASES = {
    "adam_epsilon": "train.optimizer.eps",
    "backend": "cluster.transport",
    "batch_size": "train.global_batch_size",
    "bf16": "train.precision",
    "clip_grad": "train.optimizer.clip_norm",
    "dtype": "train.precision",
    "eval_interval": "train.eval.every",
    "eval_steps": "train.eval.every",
    "expert_parallel_size": "parallel.expert_workers",
    "first_k_dense_replace": "model.dense_layers",
    "head_size": "model.head_dim",
    "hidden_dim": "model.hidden",
    "initializer_range": "model.init_std",
    "intermediate_size": "model.expert_width",
    "learning_rate": "train.optimizer.lr",
    "lr_scheduler_type": "train.lr_schedule.kind",
    "max_grad_norm": "train.optimizer.clip_norm",
    "max_position_embeddings": "train.sequence_length",
    "max_steps": "train.steps",
    "moe_aux_loss_coeff": "train.loss.aux_coef",
    "moe_intermediate_size": "model.expert_width",
    "moe_router_topk": "model.top_k",
    "moe_z_loss_coeff": "train.loss.z_coef",
    "n_embd": "model.hidden",
    "n_group": "model.expert_groups",
    "n_routed_experts": "model.experts",
    "n_shared_experts": "model.shared_width",
    "num_experts_per_tok": "model.top_k",
    "num_key_value_heads": "model.kv_heads",
    "num_local_experts": "model.experts",
    "num_query_groups": "model.kv_heads",
    "pipeline_parallel_size": "parallel.groups",
    "rms_norm_eps": "model.norm_eps",
    "router_aux_loss_coef": "train.loss.aux_coef",
    "seq_len": "train.sequence_length",
    "seq_length": "train.sequence_length",
    "shared_expert_intermediate_size": "model.shared_width",
    "sliding_window": "model.window",
    "tie_word_embeddings": "model.tied_embeddings",
    "topk_group": "model.top_groups",
    "train_iters": "train.steps",
    "untie_embeddings_and_output_weights": "model.tied_embeddings",
    "v_head_dim": "model.head_dim",
    "warmup": "train.lr_schedule.warmup_steps",
}

_FILLERS = frozenset({"num", "n", "number", "of", "the", "total"})
_TYPO = 0.75  # similarity of two words above which they count as one misspelt word
_LEAST = 0.75  # score below which a guess would confuse more than help


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the dotted name among `names` that `name` most likely stands for, or None.

    All names compete, wherever they live, so that wrong nesting (`train.lr`), other systems' words
    (`num_experts_per_tok`) and misspelling (`model.expert`) all find their setting.
    """
    candidates = list(names)
    alias = ALIASES.get(_leaf(name).lower().replace("-", "_"))
    if alias in candidates:
        return alias
    scores = {other: _score(name, other) for other in candidates}
    best = max(scores, key=scores.__getitem__, default=None)
    return best if best is not None and scores[best] >= _LEAST else None


def _score(name: str, other: str) -> float:
    asked, leaf, path = _words(name), _words(_leaf(other)), _words(other)
    if not asked:
        return 0.0
    explained = sum(_among(word, path) for word in asked) / len(asked)
    named = sum(_among(word, asked) for word in leaf) / len(leaf)
    spelt = SequenceMatcher(None, _leaf(name), _leaf(other)).ratio()
    # The last word of a name is the thing, those before it say which: `num_hidden_layers`.
    thing = _among(asked[-1], leaf)
    nested = name.rpartition(".")[0] == other.rpartition(".")[0]
    # `train.zq` shares only its table with `train.steps`, which says nothing about `zq`.
    last = _words(_leaf(name)) or asked
    told = named and any(_among(word, path) for word in last)
    by_words = (explained + named) / 2 if told else 0.0
    return max(by_words, spelt) + 0.1 * spelt + 0.1 * thing + 0.05 * nested


def _among(word: str, others: list[str]) -> float:
    best = max((SequenceMatcher(None, word, other).ratio() for other in others), default=0.0)
    return best if best >= _TYPO else 0.0


def _leaf(name: str) -> str:
    return name.rpartition(".")[2]


def _words(name: str) -> list[str]:
    words = name.lower().replace("-", "_").replace(".", "_").split("_")
    return [word.removesuffix("s") or word for word in words if word and word not in _FILLERS]
