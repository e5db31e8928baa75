"""The tensors of one piece of the network, read from a worker's store by name.

A store maps local names (partition.py) to tensors. These views only give the tensors their shapes
in names; gradients are asked for by name on the store itself. Letters as in names.py, and
Q heads x head_dim, W kv_heads x head_dim, G 2F (gate, then up).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from disagmoe.config.model import ModelConfig
from disagmoe.model import names, partition

Store = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class AttentionParams:
    """One layer on the attention side."""

    attn_norm_D: torch.Tensor
    q_QD: torch.Tensor
    k_WD: torch.Tensor
    v_WD: torch.Tensor
    o_DQ: torch.Tensor
    q_norm_C: torch.Tensor | None
    k_norm_C: torch.Tensor | None
    moe_norm_D: torch.Tensor
    router_ED: torch.Tensor

    @classmethod
    def read(cls, store: Store, config: ModelConfig, layer: int) -> "AttentionParams":
        """Take the tensors of `layer` from `store`."""

        def get(leaf: str) -> torch.Tensor:
            return store[names.attention_name(layer, leaf)]

        qk_norm = names.has_qk_norm(config)
        return cls(
            attn_norm_D=get("attn_norm"),
            q_QD=get("attn.q"),
            k_WD=get("attn.k"),
            v_WD=get("attn.v"),
            o_DQ=get("attn.o"),
            q_norm_C=get("attn.q_norm") if qk_norm else None,
            k_norm_C=get("attn.k_norm") if qk_norm else None,
            moe_norm_D=get("moe_norm"),
            router_ED=get("router"),
        )


@dataclass(frozen=True, slots=True)
class ExpertParams:
    """The local experts of one layer, stacked; rows 0..F-1 of `gate_up` are the gate."""

    gate_up_EGD: torch.Tensor
    down_EDF: torch.Tensor

    @classmethod
    def read(cls, store: Store, layer: int) -> "ExpertParams":
        """Take the stacks of `layer` from `store`."""
        return cls(store[partition.gate_up_name(layer)], store[partition.down_name(layer)])


@dataclass(frozen=True, slots=True)
class HeadParams:
    """Final norm and LM head."""

    final_norm_D: torch.Tensor
    head_VD: torch.Tensor

    @classmethod
    def read(cls, store: Store, config: ModelConfig) -> "HeadParams":
        """Take the head from `store`; with tied embeddings its matrix is the embedding's."""
        return cls(store[names.FINAL_NORM], store[names.head_name(config)])
