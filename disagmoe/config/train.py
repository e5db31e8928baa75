"""Steps, batch, precision, loss and optimizer."""

from typing import Literal

from pydantic import Field

from disagmoe.config.base import Section
from disagmoe.units import MIB

_FP32_BYTES = 4
HEAD_BYTES = 128 * MIB
"""About three times as much is in memory: logits, their softmax and their gradient. Of a vocabulary
of 152k that is 220 tokens at a time, with which a product of matrices is still efficient."""


class OptimizerConfig(Section):
    """AdamW with fp32 state, and the clipping of the global gradient norm."""

    lr: float = Field(default=3e-4, gt=0)
    """Peak learning rate."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay of the first moment."""
    beta2: float = Field(default=0.95, ge=0, lt=1)
    """Decay of the second moment."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the root of the second moment."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Decoupled weight decay of all matrices, embedding and LM head included; norms have none."""
    groups: list[str] = Field(default_factory=list)
    """Patterns of parameter names with rules of their own, such as `layers.*.router.weight` (`*`
    stands for anything); the first that fits a name counts, and each fits at least one. Experts of
    a layer are updated as one, so that a pattern fits all of them or none."""
    group_lr: list[float] = Field(default_factory=list)
    """Factor of the learning rate for each of `groups`; [] is 1 for all."""
    group_weight_decay: list[float] = Field(default_factory=list)
    """Weight decay for each of `groups`, norms and biases among them included; [] leaves it at
    `weight_decay` for matrices and 0 for all others."""
    clip_norm: float = Field(default=1.0, ge=0)
    """Global gradient norm above which all gradients are scaled down to it; 0 turns clipping off.
    """


class LrScheduleConfig(Section):
    """Learning rate over steps."""

    kind: Literal["cosine", "wsd", "constant"] = "cosine"
    """After the warm-up: `cosine` falls to the floor over the rest of the run, `wsd` stays at the
    peak and falls linearly over the last `decay_steps`, `constant` stays at the peak."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps of linear warm-up; step i (from 0) has lr * (i+1)/warmup_steps."""
    decay_steps: int = Field(default=0, ge=0)
    """Length of the linear fall at the end of `wsd`, in steps; only for `wsd`."""
    min_lr_ratio: float = Field(default=0.1, ge=0, le=1)
    """Floor of the learning rate as a share of the peak."""


class LossConfig(Section):
    """Terms that are added to the cross-entropy."""

    aux_coef: float = Field(default=0.0, ge=0)
    """Weight of the load-balancing loss, which is 1 per layer when routing is uniform; summed over
    layers."""
    aux_scope: Literal["sequence", "micro_batch", "global"] = "sequence"
    """Over which tokens the balance is measured: each `sequence` alone or the `global` batch of a
    step (neither depends on the layout), or each `micro_batch` over all attention workers. With
    `global` all micro-batches of a step are in flight: the last must be routed before the first
    goes back."""
    bias_rate: float = Field(default=0.0, ge=0)
    """What a step adds to the bias of each expert that was chosen less than the mean, and subtracts
    from those chosen more often; it is for the choice alone, and no gradient or weight decay meets
    it (arXiv:2408.15664; DeepSeek-V3 takes 0.001). For families with such a bias: `deepseek_v3`."""
    chunk_tokens: int = Field(default=0, ge=0)
    """Tokens whose logits are in memory at a time, in the LM head's forward and backward; 0 takes
    as many as have 128 MiB of them in fp32."""
    z_coef: float = Field(default=0.0, ge=0)
    """Weight of the router z-loss, the mean squared log-sum-exp of the router logits; summed over
    layers."""

    def head_tokens(self, vocab_size: int) -> int:
        """Tokens whose logits are in memory at a time: `chunk_tokens`, or what 0 stands for."""
        return self.chunk_tokens or max(1, HEAD_BYTES // (_FP32_BYTES * vocab_size))

    @property
    def balances_step(self) -> bool:
        """Whether the gradient of a micro-batch depends on where all tokens of the step went."""
        return self.aux_coef > 0 and self.aux_scope == "global"


class EvalConfig(Section):
    """Loss on held-out sequences."""

    every: int = Field(default=0, ge=0)
    """Evaluate each time this many steps are done, and at the end; 0 never evaluates."""
    sequences: int = Field(default=64, ge=1)
    """Held-out sequences per evaluation; taken from the end of the data and never trained on."""


class TrainConfig(Section):
    """What one step is and how many there are."""

    steps: int = Field(ge=1)
    """Optimizer steps."""
    global_batch_size: int = Field(ge=1)
    """Sequences per step."""
    sequence_length: int = Field(ge=1)
    """Tokens per sequence that are predicted; each sequence reads one token more as last target."""
    seed: int = Field(default=0, ge=0)
    """Seed of the initial weights and of the data order."""
    precision: Literal["auto", "fp32", "bf16", "fp64"] = "auto"
    """Type of weights and activations; `auto` is bf16 on CUDA and fp32 on CPU. Router, norms, loss,
    gradient sums, master weights and moments stay in fp32 (all fp64 in fp64)."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """AdamW."""
    lr_schedule: LrScheduleConfig = LrScheduleConfig()
    """Learning rate over steps."""
    loss: LossConfig = LossConfig()
    """Terms beside the cross-entropy."""
    eval: EvalConfig = EvalConfig()
    """Held-out evaluation."""
