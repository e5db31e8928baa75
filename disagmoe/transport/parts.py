"""Rules for the parts of a post that all backends share."""

from collections.abc import Mapping

import torch

from disagmoe.errors import TransportError
from disagmoe.transport.base import ChannelSpec


def describe(tensor: torch.Tensor) -> str:
    """Return size and type of `tensor`, for example `40 bytes (10 x float32)`."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{tensor.nbytes} bytes ({tensor.numel()} x {dtype})"


def place(channel: str, worker: str, post: int, label: str) -> str:
    """Return where an error happened: `channel A0>F0.act, worker A0.1, post 3 (L0 m1)`."""
    named = f" ({label})" if label else ""
    return f"channel {channel}, worker {worker}, post {post}{named}"


def same_size(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Return whether one may be received into the other: equal number and type of elements."""
    return left.numel() == right.numel() and left.dtype == right.dtype


def check_parts(
    spec: ChannelSpec,
    me: str,
    sends: Mapping[str, torch.Tensor],
    recvs: Mapping[str, torch.Tensor],
) -> None:
    """Raise TransportError for a part that `spec` does not carry or that no backend can move.

    A part is refused when it runs against the channel's direction, is not contiguous, or is meant
    for oneself and has no counterpart of its size.
    """
    for peer, tensor in sends.items():
        where = f"channel {spec.name}: {me} sends to {peer}"
        if me not in spec.sources or peer not in spec.targets:
            raise TransportError(f"{where}, but {_directions(spec)}")
        _check_contiguous(tensor, where)
    for peer, tensor in recvs.items():
        where = f"channel {spec.name}: {me} receives from {peer}"
        if me not in spec.targets or peer not in spec.sources:
            raise TransportError(f"{where}, but {_directions(spec)}")
        _check_contiguous(tensor, where)
    _check_self_part(spec, me, sends.get(me), recvs.get(me))


def copy_self_part(
    me: str, sends: Mapping[str, torch.Tensor], recvs: Mapping[str, torch.Tensor]
) -> None:
    """Copy the part that a worker sends to itself, if there is one."""
    if me in recvs:
        recvs[me].view(-1).copy_(sends[me].view(-1))


def _directions(spec: ChannelSpec) -> str:
    return f"it goes from {', '.join(spec.sources)} to {', '.join(spec.targets)}"


def _check_contiguous(tensor: torch.Tensor, where: str) -> None:
    if not tensor.is_contiguous():
        shape, strides = tuple(tensor.shape), tensor.stride()
        raise TransportError(
            f"{where} a tensor of shape {shape} with strides {strides}; it must be contiguous"
        )


def _check_self_part(
    spec: ChannelSpec, me: str, sent: torch.Tensor | None, received: torch.Tensor | None
) -> None:
    if sent is None and received is None:
        return
    if sent is None or received is None or not same_size(sent, received):
        out = "nothing" if sent is None else describe(sent)
        into = "nothing" if received is None else describe(received)
        raise TransportError(f"channel {spec.name}: {me} sends itself {out} but expects {into}")
