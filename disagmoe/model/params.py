"""The tensors of one piece of the network, read from a worker's store by name.

A store maps local names (partition.py) to tensors. These views only give the tensors their shapes
in names; gradients are asked for by name on the store itself. Letters as in names.py, and
Q heads x query head width, W kv_heads x head_dim, Z and Y ranks of compressed queries and keys, R
rotated width, U heads x (unrotated width + head_dim), G 2F (gate, then up).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from disagmoe.config.families import traits
from disagmoe.config.model import ModelConfig
from disagmoe.model import names, partition

Store = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class GroupedQueryParams:
    """Attention in which several query heads share a key/value head."""

    q_QD: torch.Tensor
    k_WD: torch.Tensor
    v_WD: torch.Tensor
    o_DQ: torch.Tensor
    q_bias_Q: torch.Tensor | None
    k_bias_W: torch.Tensor | None
    v_bias_W: torch.Tensor | None
    o_bias_D: torch.Tensor | None
    q_norm: torch.Tensor | None
    """[C] for each head, or [Q] for all together."""
    k_norm: torch.Tensor | None
    sinks_H: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class CompressedQueryParams:
    """Queries that come through a narrow layer."""

    down_ZD: torch.Tensor
    norm_Z: torch.Tensor
    up_QZ: torch.Tensor


@dataclass(frozen=True, slots=True)
class LatentParams:
    """Multi-head latent attention."""

    q: torch.Tensor | CompressedQueryParams
    """[Q, D], or the compressed form."""
    kv_down_YRD: torch.Tensor
    """Rows 0..Y-1 give the compressed keys and values, the others the rotated part of the keys."""
    kv_norm_Y: torch.Tensor
    kv_up_UY: torch.Tensor
    o_DQ: torch.Tensor


@dataclass(frozen=True, slots=True)
class SwigluParams:
    """Dense SwiGLU: that of a dense layer, or of shared experts."""

    gate_FD: torch.Tensor
    up_FD: torch.Tensor
    down_DF: torch.Tensor
    switch_1D: torch.Tensor | None = None
    """Of a gate on the whole."""

    @classmethod
    def read(cls, store: Store, config: ModelConfig, layer: int, part: str) -> "SwigluParams":
        """Take `shared` or `dense` of `layer` from `store`."""
        gate, up, down = (
            store[names.attention_name(layer, f"{part}.{leaf}")] for leaf in names.SWIGLU
        )
        switched = part == "shared" and traits(config).shared_gate
        switch = store[names.attention_name(layer, "shared.switch")] if switched else None
        return cls(gate, up, down, switch)


@dataclass(frozen=True, slots=True)
class RouterParams:
    """What decides where a token goes."""

    weight_ED: torch.Tensor
    bias_E: torch.Tensor | None = None
    balance_E: torch.Tensor | None = None
    """Added to the scores for the choice alone; wide, without gradient."""


@dataclass(frozen=True, slots=True)
class AttentionParams:
    """One layer on the attention side."""

    attn_norm_D: torch.Tensor
    mixing: GroupedQueryParams | LatentParams
    moe_norm_D: torch.Tensor
    router: RouterParams | None
    """None in a dense layer."""
    swiglu: SwigluParams | None
    """That of a dense layer, or of shared experts on the attention side."""

    @classmethod
    def read(
        cls, store: Store, config: ModelConfig, layer: int, *, shared: bool = True
    ) -> "AttentionParams":
        """Take the tensors of `layer` from `store`, which has shared experts if `shared`."""
        dense = layer < config.dense_layers
        part = "dense" if dense else "shared" if shared and config.shared_width else None
        return cls(
            attn_norm_D=store[names.attention_name(layer, "attn_norm")],
            mixing=_read_mixing(store, config, layer),
            moe_norm_D=store[names.attention_name(layer, "moe_norm")],
            router=None if dense else _read_router(store, config, layer),
            swiglu=None if part is None else SwigluParams.read(store, config, layer, part),
        )


def _read_mixing(
    store: Store, config: ModelConfig, layer: int
) -> GroupedQueryParams | LatentParams:
    def get(leaf: str) -> torch.Tensor:
        return store[names.attention_name(layer, leaf)]

    def get_if(there: bool, leaf: str) -> torch.Tensor | None:
        return get(leaf) if there else None

    def bias(there: bool, leaf: str) -> torch.Tensor | None:
        return store[names.bias_name(layer, leaf)] if there else None

    if config.kv_lora_rank:
        compressed = config.q_lora_rank > 0
        return LatentParams(
            q=CompressedQueryParams(get("attn.q_down"), get("attn.q_down_norm"), get("attn.q_up"))
            if compressed
            else get("attn.q"),
            kv_down_YRD=get("attn.kv_down"),
            kv_norm_Y=get("attn.kv_down_norm"),
            kv_up_UY=get("attn.kv_up"),
            o_DQ=get("attn.o"),
        )
    own = traits(config)
    normed = own.qk_norm != "none"
    return GroupedQueryParams(
        q_QD=get("attn.q"),
        k_WD=get("attn.k"),
        v_WD=get("attn.v"),
        o_DQ=get("attn.o"),
        q_bias_Q=bias(own.qkv_bias, "attn.q"),
        k_bias_W=bias(own.qkv_bias, "attn.k"),
        v_bias_W=bias(own.qkv_bias, "attn.v"),
        o_bias_D=bias(own.output_bias, "attn.o"),
        q_norm=get_if(normed, "attn.q_norm"),
        k_norm=get_if(normed, "attn.k_norm"),
        sinks_H=get_if(own.sinks, "attn.sinks"),
    )


def _read_router(store: Store, config: ModelConfig, layer: int) -> RouterParams:
    own = traits(config)
    return RouterParams(
        store[names.attention_name(layer, "router")],
        store[names.bias_name(layer, "router")] if own.expert_bias else None,
        store[names.balance_name(layer)] if own.balance_bias else None,
    )


@dataclass(frozen=True, slots=True)
class ExpertParams:
    """The local experts of one layer, stacked; rows 0..F-1 of `gate_up` are the gate."""

    gate_up_EGD: torch.Tensor
    down_EDF: torch.Tensor
    gate_up_bias_EG: torch.Tensor | None = None
    """With biases, the activation is the clamped SwiGLU (activation.py)."""
    down_bias_ED: torch.Tensor | None = None

    @classmethod
    def read(cls, store: Store, config: ModelConfig, layer: int) -> "ExpertParams":
        """Take the stacks of `layer` from `store`."""
        return cls(*(store[name] for name in partition.stack_names(config, layer)))

    @property
    def stacks(self) -> tuple[torch.Tensor, ...]:
        """All that are there, in the order of `partition.stack_names`."""
        every = (self.gate_up_EGD, self.down_EDF, self.gate_up_bias_EG, self.down_bias_ED)
        return tuple(stack for stack in every if stack is not None)


@dataclass(frozen=True, slots=True)
class HeadParams:
    """Final norm and LM head."""

    final_norm_D: torch.Tensor
    head_VD: torch.Tensor

    @classmethod
    def read(cls, store: Store, config: ModelConfig) -> "HeadParams":
        """Take the head from `store`; with tied embeddings its matrix is the embedding's."""
        return cls(store[names.FINAL_NORM], store[names.head_name(config)])
