"""Which worker holds which parameters, and where in its tensors each global parameter lies.

A local tensor is what a worker keeps, updates and differentiates. Most are one global parameter
under its global name. The experts of one layer are stacked, because one grouped GEMM runs them all:
`layers.{l}.experts.gate_up` [E_local, 2F, D] (gate first) and `layers.{l}.experts.down`
[E_local, D, F], and where experts have biases `layers.{l}.experts.gate_up_bias` [E_local, 2F] and
`layers.{l}.experts.down_bias` [E_local, D].
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from disagmoe.config.families import traits
from disagmoe.config.model import ModelConfig
from disagmoe.config.shares import apportion
from disagmoe.errors import ConfigError
from disagmoe.model import names


@dataclass(frozen=True, slots=True)
class Part:
    """Place of one global parameter inside a local tensor."""

    name: str
    """Global name."""
    shape: names.Shape
    """Global shape."""
    position: int | None = None
    """Index in the stack of experts; None when the parameter is the whole local tensor."""
    row: int = 0
    """First row inside that expert's matrix."""

    def view(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the part of the local `tensor` that is this parameter; shares memory."""
        if self.position is None:
            return tensor
        return tensor[self.position, self.row : self.row + self.shape[0]]


@dataclass(frozen=True, slots=True)
class LocalTensor:
    """One tensor of a worker: its name there, its shape, and the global parameters in it."""

    name: str
    shape: names.Shape
    parts: tuple[Part, ...]

    def split(self, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return views of `tensor` by global name; the inverse of `join`."""
        return {part.name: part.view(tensor) for part in self.parts}

    def join(self, parameters: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return a new local tensor filled from `parameters` by global name."""
        first = parameters[self.parts[0].name]
        tensor = torch.empty(self.shape, dtype=first.dtype, device=first.device)
        for part in self.parts:
            part.view(tensor).copy_(parameters[part.name])
        return tensor


def expert_ranges(experts: int, weights: Sequence[float]) -> tuple[range, ...]:
    """Return the experts of each expert worker: contiguous, in proportion to one weight per worker.

    7 experts by equal weights of three workers are 3, 2, 2. Raises ConfigError when a worker would
    hold none.
    """
    parts = apportion(experts, weights)
    if 0 in parts:
        raise ConfigError(
            f"{experts} experts do not spread over {len(parts)} expert workers: {parts}; use at "
            f"most {experts} workers and less unequal shares"
        )
    ends = list(accumulate(parts))
    return tuple(range(end - part, end) for end, part in zip(ends, parts, strict=True))


def gate_up_name(layer: int) -> str:
    """Local name of the stacked gate and up matrices of `layer`."""
    return f"layers.{layer}.experts.gate_up"


def down_name(layer: int) -> str:
    """Local name of the stacked down matrices of `layer`."""
    return f"layers.{layer}.experts.down"


def stack_names(config: ModelConfig, layer: int) -> tuple[str, ...]:
    """Local names of all stacks of `layer`."""
    weights = (gate_up_name(layer), down_name(layer))
    return (*weights, *(f"{name}_bias" for name in weights if traits(config).expert_bias))


def attention_tensors(
    config: ModelConfig,
    layers: Iterable[int],
    *,
    embedding: bool,
    head: bool,
    shared: bool = True,
) -> tuple[LocalTensor, ...]:
    """Return the tensors of an attention worker that owns `layers`, the dense ones with the
    embedding; `shared` experts are among them or on the other side.

    With tied embeddings a worker that has both the embedding and the head holds their matrix once.
    """
    shapes = names.embed_shapes(config) if embedding else {}
    for layer in layers:
        shapes |= names.attention_shapes(config, layer)
        for name in () if shared else names.shared_shapes(config, layer):
            del shapes[name]
    if head:
        shapes |= names.head_shapes(config)
    return whole_tensors(shapes)


def whole_tensors(shapes: Mapping[str, names.Shape]) -> tuple[LocalTensor, ...]:
    """Return tensors that are one global parameter each."""
    return tuple(LocalTensor(name, shape, (Part(name, shape),)) for name, shape in shapes.items())


def balance_tensors(config: ModelConfig, layers: Iterable[int]) -> tuple[LocalTensor, ...]:
    """Return the biases that balance the experts of `layers`: kept like parameters, but in the wide
    type, and moved by counts instead of gradients."""
    shapes: dict[str, names.Shape] = {}
    for layer in layers:
        shapes |= names.balance_shapes(config, layer)
    return whole_tensors(shapes)


def expert_tensors(
    config: ModelConfig, layers: Iterable[int], experts: range
) -> tuple[LocalTensor, ...]:
    """Return the tensors of an expert worker that owns `experts` of each of `layers`, none of them
    dense."""
    return tuple(tensor for layer in layers for tensor in _expert_stacks(config, layer, experts))


def model_tensors(config: ModelConfig) -> tuple[LocalTensor, ...]:
    """Return the tensors of one worker that holds the whole network."""
    layers = range(config.layers)
    attention = attention_tensors(config, layers, embedding=True, head=True)
    sparse = range(config.dense_layers, config.layers)
    return attention + expert_tensors(config, sparse, range(config.experts))


def end_tensors(config: ModelConfig) -> tuple[LocalTensor, ...]:
    """Return the tensors of both ends of the network: embedding, final norm, LM head."""
    return attention_tensors(config, (), embedding=True, head=True)


def layer_tensors(config: ModelConfig, layer: int) -> tuple[LocalTensor, ...]:
    """Return all tensors of `layer`; those of all layers and of the ends are `model_tensors`."""
    attention = attention_tensors(config, (layer,), embedding=False, head=False)
    sparse = () if layer < config.dense_layers else (layer,)
    return attention + expert_tensors(config, sparse, range(config.experts))


def _expert_stacks(config: ModelConfig, layer: int, experts: range) -> tuple[LocalTensor, ...]:
    width, hidden, count = config.expert_width, config.hidden, len(experts)
    name_of = (names.expert_name, names.expert_bias_name)
    gate_up: tuple[list[Part], list[Part]] = ([], [])
    down: tuple[list[Part], list[Part]] = ([], [])
    for position, expert in enumerate(experts):
        shapes = names.expert_shapes(config, layer, expert)
        for leaf, row in (("gate", 0), ("up", width), ("down", 0)):
            for kind, parts in enumerate(down if leaf == "down" else gate_up):
                name = name_of[kind](layer, expert, leaf)
                if name in shapes:
                    parts.append(Part(name, shapes[name], position, row))
    whole: tuple[names.Shape, ...] = (
        (count, 2 * width, hidden),
        (count, hidden, width),
        (count, 2 * width),
        (count, hidden),
    )
    places = (gate_up[0], down[0], gate_up[1], down[1])
    stacks = zip(stack_names(config, layer), whole, places, strict=False)
    return tuple(LocalTensor(name, shape, tuple(own)) for name, shape, own in stacks)
