"""How long the ops of a schedule take on one worker.

Beside matrix products and flash attention a layer has kernels that only move data; what they move
is counted as they are commonly written, each reading its inputs and writing its results once.

Letters: T tokens, h hidden, q query heads, g key/value heads, d head width, r rows of a token on
the wire, E experts, V vocabulary.
"""

from dataclasses import dataclass, replace

from disagmoe.config.model import ModelConfig
from disagmoe.costs import flops, parameters
from disagmoe.costs.kernels import (
    Machine,
    Product,
    flash_rate,
    grouped_s,
    moved_s,
    product_s,
    products_s,
)

_FP32_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWork:
    """What attention does for a micro-batch on one worker."""

    tokens: int
    length: int
    """Of its sequences."""
    window: int = 0
    rows: float = 0.0
    """Copies of a token that go to expert workers; those of a dense layer are 0."""
    again: bool = False
    """Whether the backward computes the forward again."""


def attention_products(model: ModelConfig) -> tuple[Product, ...]:
    """The projections of one layer; queries, keys and values of plain attention are one product."""
    h, heads, d = model.hidden, model.heads, model.head_dim
    output = Product(heads * d, h)
    if not model.kv_lora_rank:
        return (Product(h, d * (heads + 2 * model.kv_heads)), output)
    queries, rank = heads * model.qk_head_dim, model.q_lora_rank
    query = (Product(h, rank), Product(rank, queries)) if rank else (Product(h, queries),)
    down = Product(h, model.kv_lora_rank + model.qk_rope_head_dim)
    up = Product(model.kv_lora_rank, heads * (model.qk_nope_head_dim + d))
    return (*query, down, up, output)


def swiglu_products(model: ModelConfig, width: int) -> tuple[Product, ...]:
    """Gate and up as one product, and down."""
    if not width:
        return ()
    return (Product(model.hidden, 2 * width), Product(width, model.hidden))


def attention_forward_s(machine: Machine, model: ModelConfig, work: AttentionWork) -> float:
    """Seconds of a layer with experts on an attention worker, from the outputs of the layer before
    to the rows of this one."""
    if not work.tokens:
        return 0.0
    elements = _attention_elements(model) + (3 * work.rows + 2) * model.hidden
    elements += 3 * model.shared_width
    return (
        _attention_kernels_s(machine, model, work)
        + _router_s(machine, model, work.tokens)
        + _swiglu_s(machine, model, work.tokens, model.shared_width)
        + moved_s(
            machine,
            work.tokens * (elements * machine.element_bytes + 3 * model.experts * _FP32_BYTES),
            kernels=8,
        )
    )


def attention_backward_s(machine: Machine, model: ModelConfig, work: AttentionWork) -> float:
    """Seconds of its backward, and of adding its gradients to their sums."""
    if not work.tokens:
        return 0.0
    elements = 1.5 * _attention_elements(model) + (3 * work.rows + 3) * model.hidden
    elements += 6 * model.shared_width
    tokens = work.tokens
    again = attention_forward_s(machine, model, replace(work, rows=0.0)) if work.again else 0.0
    return (
        again
        + _attention_backward_kernels_s(machine, model, work)
        + 2 * _router_s(machine, model, tokens)
        + 2 * _swiglu_s(machine, model, tokens, model.shared_width)
        + moved_s(
            machine,
            tokens * (elements * machine.element_bytes + 4 * model.experts * _FP32_BYTES),
            kernels=10,
        )
        + gradient_sum_s(machine, parameters.attention_side_parameters(model))
    )


def dense_forward_s(machine: Machine, model: ModelConfig, work: AttentionWork) -> float:
    """Seconds of a dense layer."""
    if not work.tokens:
        return 0.0
    elements = _attention_elements(model) + 3 * model.hidden + 3 * model.dense_width
    return (
        _attention_kernels_s(machine, model, work)
        + _swiglu_s(machine, model, work.tokens, model.dense_width)
        + moved_s(machine, work.tokens * elements * machine.element_bytes, kernels=6)
    )


def dense_backward_s(machine: Machine, model: ModelConfig, work: AttentionWork) -> float:
    """Seconds of its backward, and of adding its gradients to their sums."""
    if not work.tokens:
        return 0.0
    elements = 1.5 * _attention_elements(model) + 4 * model.hidden + 6 * model.dense_width
    return (
        (dense_forward_s(machine, model, work) if work.again else 0.0)
        + _attention_backward_kernels_s(machine, model, work)
        + 2 * _swiglu_s(machine, model, work.tokens, model.dense_width)
        + moved_s(machine, work.tokens * elements * machine.element_bytes, kernels=8)
        + gradient_sum_s(machine, parameters.dense_layer_parameters(model))
    )


def embed_s(machine: Machine, model: ModelConfig, tokens: int) -> float:
    """Seconds of the embedding: rows are read and written."""
    if not tokens:
        return 0.0
    return moved_s(machine, 2 * tokens * model.hidden * machine.element_bytes)


def embed_backward_s(machine: Machine, model: ModelConfig, tokens: int) -> float:
    """Seconds of adding the gradients of the embedding's rows to their sums."""
    if not tokens:
        return 0.0
    return moved_s(
        machine, tokens * model.hidden * (machine.element_bytes + 2 * _FP32_BYTES), kernels=2
    )


def head_s(machine: Machine, model: ModelConfig, tokens: int, *, training: bool = True) -> float:
    """Seconds of last norm, LM head and loss, in training forward and backward.

    A logit is written, widened to fp32, normalised, and in training comes back: 5 times as it is
    computed and 6 times in fp32, in an evaluation 2 and 3 times.
    """
    if not tokens:
        return 0.0
    element, vocabulary = machine.element_bytes, model.vocab_size
    product = Product(model.hidden, vocabulary)
    once = product_s(machine, machine.calibration.dense, tokens, product)
    if not training:
        nbytes = tokens * vocabulary * (2 * element + 3 * _FP32_BYTES)
        return once + moved_s(machine, nbytes, kernels=4)
    nbytes = tokens * vocabulary * (5 * element + 6 * _FP32_BYTES)
    weights = model.hidden * vocabulary
    return 3 * once + moved_s(machine, nbytes, kernels=8) + gradient_sum_s(machine, weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertWork:
    """What the experts of one worker do for a micro-batch."""

    pairs: float
    """Of a token and an expert."""
    experts: int
    shared_tokens: float = 0.0
    """Tokens for which shared experts on this worker work."""
    again: bool = False
    """Whether the backward computes the forward of routed experts again."""


def experts_forward_s(machine: Machine, model: ModelConfig, work: ExpertWork) -> float:
    """Seconds of a layer's experts, from rows in to sums out."""
    return routed_s(machine, model, work) + _shared_s(machine, model, work)


def routed_s(machine: Machine, model: ModelConfig, work: ExpertWork) -> float:
    """Seconds of the experts that tokens are routed to, forward; either half of the backward takes
    as long."""
    return grouped_s(
        machine,
        pairs=work.pairs,
        experts=work.experts,
        hidden=model.hidden,
        width=model.expert_width,
    )


def experts_inputs_s(machine: Machine, model: ModelConfig, work: ExpertWork) -> float:
    """Seconds of the gradients of the rows: products of the size of the forward's. Those of shared
    experts come with the gradients of their weights."""
    times = 2 if work.again else 1
    return times * routed_s(machine, model, work) + 2 * _shared_s(machine, model, work)


def experts_weights_s(machine: Machine, model: ModelConfig, work: ExpertWork) -> float:
    """Seconds of the gradients of the weights, likewise, and of adding them to their sums."""
    weights = work.experts * parameters.expert_parameters(model)
    if work.shared_tokens:
        weights += parameters.shared_parameters(model)
    return routed_s(machine, model, work) + gradient_sum_s(machine, weights)


def _shared_s(machine: Machine, model: ModelConfig, work: ExpertWork) -> float:
    """Seconds of shared experts on an expert worker: their rows are picked out, and their outputs
    added to the sums."""
    if not work.shared_tokens:
        return 0.0
    elements = 5 * model.hidden + 3 * model.shared_width
    return _swiglu_s(machine, model, work.shared_tokens, model.shared_width) + moved_s(
        machine, work.shared_tokens * elements * machine.element_bytes, kernels=3
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayWork:
    """What a worker does as a gateway for a micro-batch."""

    rows: float
    """That come from attention workers."""
    copies: float
    """That go to the expert workers of its host."""


def fan_out_s(machine: Machine, model: ModelConfig, work: GatewayWork) -> float:
    """Seconds of handing rows out: those of several senders are put together, then gathered."""
    elements = 2 * (work.rows + work.copies) * model.hidden
    return moved_s(machine, elements * machine.element_bytes, kernels=8)


def gather_add_s(machine: Machine, model: ModelConfig, work: GatewayWork) -> float:
    """Seconds of adding up what returns: copies are widened to fp32 and added to sums, which are
    zeroed before and narrowed afterwards."""
    element = machine.element_bytes
    copies = work.copies * (element + 4 * _FP32_BYTES)
    sums = work.rows * (2 * _FP32_BYTES + 2 * element)
    return moved_s(machine, (copies + sums) * model.hidden, kernels=6)


def gradient_sum_s(machine: Machine, count: float) -> float:
    """Seconds of adding the gradients of `count` parameters to their sums in fp32: the gradient is
    written and read, the sum read and written."""
    return moved_s(machine, count * (2 * machine.element_bytes + 2 * _FP32_BYTES))


def update_s(machine: Machine, held: float, own: float) -> float:
    """Seconds of the end of a step on a worker that holds `held` parameters, `own` of them as its
    shard: gradients are tested and zeroed; norm, then AdamW on master weights and two moments."""
    whole = held * 2 * _FP32_BYTES
    shard = own * (9 * _FP32_BYTES + machine.element_bytes)
    return moved_s(machine, whole + shard, kernels=4)


def _attention_kernels_s(machine: Machine, model: ModelConfig, work: AttentionWork) -> float:
    products = attention_products(model)
    return products_s(machine, machine.calibration.projection, work.tokens, products) + _flash_s(
        machine, model, work
    )


def _attention_backward_kernels_s(
    machine: Machine, model: ModelConfig, work: AttentionWork
) -> float:
    products = attention_products(model)
    again = flops.flash_backward_ratio(model) / machine.calibration.flash_backward
    return 2 * products_s(
        machine, machine.calibration.projection, work.tokens, products
    ) + again * _flash_s(machine, model, work)


def _flash_s(machine: Machine, model: ModelConfig, work: AttentionWork) -> float:
    work_flops = work.tokens * flops.scores(model, work.length, work.window)
    rate = flash_rate(machine, model.head_dim, work.length, work.window)
    return work_flops / rate + machine.calibration.kernel_s


def _router_s(machine: Machine, model: ModelConfig, tokens: int) -> float:
    calibration = machine.calibration
    peak = machine.hardware.fp32_flops if calibration.router_in_fp32 else None
    product = Product(model.hidden, model.experts)
    return product_s(machine, calibration.projection, tokens, product, peak=peak)


def _swiglu_s(machine: Machine, model: ModelConfig, tokens: float, width: int) -> float:
    return products_s(machine, machine.calibration.dense, tokens, swiglu_products(model, width))


def _attention_elements(model: ModelConfig) -> float:
    """Elements per token that norm, rotation and the sum with the residual move: norms read and
    write h each, rotation (with q/k norms) queries and keys, the sum reads two and writes one."""
    rotated = model.heads * model.qk_head_dim + _key_width(model)
    return 2 * 2 * model.hidden + 3 * model.hidden + 2 * rotated


def _key_width(model: ModelConfig) -> int:
    return model.qk_rope_head_dim if model.kv_lora_rank else model.kv_heads * model.head_dim
