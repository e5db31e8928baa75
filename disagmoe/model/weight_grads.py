"""Backward in two parts: gradients of the inputs now, those of the weights when there is time.

The two parts do the work of one backward, no more: the first also takes the gradients of what came
of the weights, from which the second needs one product per stack. Both run the kernels of the whole
backward, so the bits are the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from disagmoe.model.experts import Product


@dataclass(frozen=True, slots=True)
class Pending:
    """A product whose weight has no gradient yet, and the gradients of its outputs."""

    product: Product
    grads: tuple[torch.Tensor, ...]


def input_grads(
    out: torch.Tensor,
    inputs: Sequence[torch.Tensor],
    products: Sequence[Product],
    dout: torch.Tensor,
) -> tuple[tuple[torch.Tensor, ...], tuple[Pending, ...]]:
    """Return the gradients of `inputs` given that of `out`, and what `weight_grads` needs."""
    made = [output for product in products for output in product.outputs]
    grads = torch.autograd.grad(out, [*inputs, *made], dout, retain_graph=True)
    rest = iter(grads[len(inputs) :])
    pending = tuple(Pending(one, tuple(next(rest) for _ in one.outputs)) for one in products)
    return grads[: len(inputs)], pending


def weight_grads(pending: Sequence[Pending]) -> tuple[torch.Tensor, ...]:
    """Return the gradient of each product's weight; may be asked for once."""
    return tuple(
        torch.autograd.grad(one.product.outputs, [one.product.weight], one.grads)[0]
        for one in pending
    )
