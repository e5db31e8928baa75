"""Messages that go back from experts, or from gateways for them, one per peer.

Letters: D hidden, R rows, P pairs of a row and an expert.
"""

from collections.abc import Sequence

import torch

from disagmoe.runtime.wire import Outgoing, Wire


def pack_outputs(
    wire: Wire,
    peers: Sequence[str],
    parts_RD: Sequence[torch.Tensor],
    tokens_R: Sequence[torch.Tensor | None],
) -> Outgoing:
    """Return the outputs of the rows of each peer, with the rows' tokens where the wire has them;
    those without are views of `parts_RD`."""
    buffers, counts = {}, {}
    for peer, part_RD, token_R in zip(peers, parts_RD, tokens_R, strict=True):
        counts[peer] = (len(part_RD), 0)
        if token_R is None:
            buffers[peer] = part_RD.view(torch.uint8).flatten()
            continue
        message = wire.outputs(len(part_RD))
        buffers[peer] = message.allocate(part_RD.device)
        views = message.views(buffers[peer])
        views["rows_RD"].copy_(part_RD)
        views["token_R"].copy_(token_R)
    return Outgoing(buffers, counts)


def pack_drows(
    wire: Wire,
    peers: Sequence[str],
    parts_RD: Sequence[torch.Tensor],
    gates_P: Sequence[torch.Tensor],
) -> Outgoing:
    """Return the gradients of the rows and of the gate weights of each peer."""
    buffers, counts = {}, {}
    for peer, rows_RD, gate_P in zip(peers, parts_RD, gates_P, strict=True):
        message = wire.drows(len(rows_RD), len(gate_P))
        buffers[peer] = message.allocate(rows_RD.device)
        views = message.views(buffers[peer])
        views["rows_RD"].copy_(rows_RD)
        views["gate_P"].copy_(gate_P)
        counts[peer] = (len(rows_RD), len(gate_P))
    return Outgoing(buffers, counts)
