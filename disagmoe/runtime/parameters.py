"""A worker's parameters and the exact sums of their gradients."""

from collections.abc import Iterable, Mapping, Sequence

import torch

from disagmoe.config.model import ModelConfig
from disagmoe.model import names
from disagmoe.model.init import initial_store
from disagmoe.model.partition import LocalTensor, attention_tensors, expert_range, expert_tensors
from disagmoe.model.precision import wide
from disagmoe.schedule.layout import Group, Layout, Side, Worker


def attention_side(config: ModelConfig, layout: Layout, group: Group) -> tuple[LocalTensor, ...]:
    """The tensors of every worker in the attention role `group`."""
    return attention_tensors(
        config,
        layout.layers_of(group),
        embedding=group == layout.embedding,
        head=group == layout.head,
    )


def expert_side(config: ModelConfig, layout: Layout, worker: Worker) -> tuple[LocalTensor, ...]:
    """The tensors of `worker` in its expert role."""
    share = expert_range(config.experts, layout.expert_workers, worker.rank)
    return expert_tensors(config, layout.layers_of(worker.group), share)


def local_tensors(config: ModelConfig, layout: Layout, worker: Worker) -> tuple[LocalTensor, ...]:
    """The tensors that `worker` holds, attention before experts where it has both."""
    tensors: tuple[LocalTensor, ...] = ()
    for group in layout.roles_of(worker.group):
        if group.side is Side.ATTENTION:
            tensors += attention_side(config, layout, group)
        else:
            tensors += expert_side(config, layout, Worker(group, worker.rank))
    return tensors


def is_expert(name: str) -> bool:
    """Whether a local tensor is a stack of experts, of which no other worker has a copy."""
    return ".experts." in name


class Parameters:
    """Tensors by local name, with one flat buffer of gradient sums in the exact type."""

    def __init__(
        self,
        tensors: Sequence[LocalTensor],
        *,
        seed: int,
        std: float,
        dtype: torch.dtype,
        device: torch.device,
        tied: bool = False,
    ) -> None:
        self.tensors = tuple(tensors)
        self.values = initial_store(tensors, seed=seed, std=std, dtype=dtype, device=device)
        for value in self.values.values():
            value.requires_grad_()
        sizes = [value.numel() for value in self.values.values()]
        self.flat_grad = torch.zeros(sum(sizes), dtype=wide(dtype), device=device)
        parts = self.flat_grad.split(sizes)
        self.grads: dict[str, torch.Tensor] = {
            name: part.view(value.shape)
            for (name, value), part in zip(self.values.items(), parts, strict=True)
        }
        # A tied matrix collects its two uses apart: which of them adds first depends on the
        # schedule, and the bits of the sum must not.
        self._embedding_apart = (
            torch.zeros_like(self.grads[names.EMBED])
            if names.EMBED in self.values and names.FINAL_NORM in self.values and tied
            else None
        )

    @property
    def replicated_grads(self) -> dict[str, torch.Tensor]:
        """Gradient sums of what all workers of an attention group hold alike."""
        return {name: grad for name, grad in self.grads.items() if not is_expert(name)}

    @property
    def expert_grads(self) -> dict[str, torch.Tensor]:
        """Gradient sums of this worker's own experts."""
        return {name: grad for name, grad in self.grads.items() if is_expert(name)}

    @property
    def replicated_flat(self) -> torch.Tensor:
        """`replicated_grads` as one flat view."""
        return self.flat_grad[: sum(grad.numel() for grad in self.replicated_grads.values())]

    @property
    def embedding_grad(self) -> torch.Tensor:
        """Where the input embedding's gradient is collected."""
        if self._embedding_apart is None:
            return self.grads[names.EMBED]
        return self._embedding_apart

    def join_tied(self) -> None:
        """Add the input embedding's gradient to that of the head with which it is tied."""
        if self._embedding_apart is not None:
            self.grads[names.EMBED].add_(self._embedding_apart)
            self._embedding_apart.zero_()

    def accumulate(self, local_names: Iterable[str], grads: Iterable[torch.Tensor]) -> None:
        """Add one micro-batch's gradients to the sums."""
        for name, grad in zip(local_names, grads, strict=True):
            self.grads[name].add_(grad)

    def zero_grad(self) -> None:
        """Forget the sums."""
        self.flat_grad.zero_()

    def global_values(self) -> dict[str, torch.Tensor]:
        """Views of all values by global parameter name."""
        return self._by_global_name(self.values)

    def global_grads(self) -> dict[str, torch.Tensor]:
        """Views of all gradient sums by global parameter name."""
        return self._by_global_name(self.grads)

    def _by_global_name(self, by_local: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        out: dict[str, torch.Tensor] = {}
        for local in self.tensors:
            out.update(local.split(by_local[local.name].detach()))
        return out
