"""Model FLOPs of training, which MFU is measured by; a multiply-add counts 2."""

from disagmoe.config.model import ModelConfig
from disagmoe.config.run import RunConfig


def model_flops(model: ModelConfig, length: int) -> float:
    """Return the FLOPs of a training step per token, in sequences of `length`: three forwards
    (PaLM, arXiv:2204.02311 appendix B), LM head included, embedding not.

    A forward of a layer: projections 2 x their weights; scores 4 x heads x head_dim x the keys that
    a query sees on average, (length + 1) / 2; router 2 x hidden x experts; the experts that a token
    visits 6 x hidden x width each.
    """
    heads = model.heads + model.kv_heads  # twice each: queries and output, keys and values
    projections = 2 * model.hidden * model.head_dim * 2 * heads
    scores = 4 * model.heads * model.head_dim * (length + 1) / 2
    router = 2 * model.hidden * model.experts
    experts = 6 * model.hidden * model.expert_width * model.top_k
    layer = projections + scores + router + experts
    return 3 * (model.layers * layer + 2 * model.hidden * model.vocab_size)


def peak_flops(config: RunConfig) -> dict[str, float]:
    """Return the peak FLOP/s of all workers of each side together; {} where it is not known.

    Colocated workers are those of the attention side.
    """
    metrics, parallel = config.metrics, config.parallel
    if not metrics.attention_peak_flops:
        return {}
    attention = parallel.rings * parallel.groups * parallel.attention_workers
    experts = parallel.workers - attention
    peaks = {
        "attention": attention * metrics.attention_peak_flops,
        "expert": experts * metrics.expert_peak_flops,
    }
    return {side: peak for side, peak in peaks.items() if peak}


def mfu(config: RunConfig, tokens_per_s: float) -> float | None:
    """Return model FLOPs over the peak FLOPs of both sides; None where a peak is not known."""
    peak = sum(peak_flops(config).values())
    flops = model_flops(config.model, config.train.sequence_length)
    return tokens_per_s * flops / peak if peak else None
