"""NCCL on one GPU with one rank, which sends to itself: for libraries that want a GPU per rank."""

from typing import Any

import torch

from disagmoe.errors import TransportError
from disagmoe.transport.nccl_library import Nccl
from disagmoe.transport.streams import Streams
from disagmoe.units import MIB

SIZES = (MIB // 16, MIB, 16 * MIB, 128 * MIB)
_TURNS = 20


def send_to_oneself(nccl: Nccl, streams: Streams) -> dict[str, Any]:
    """Return `bytes_per_s` by size of message.

    Raises TransportError where NCCL fails or other bytes arrive than were sent.
    """
    communicator = nccl.communicator(1, nccl.unique_id(), 0)
    stream = streams.open()
    code = nccl.dtype(torch.uint8)
    found: dict[str, float] = {}
    for nbytes in SIZES:
        sent = torch.randint(0, 256, (nbytes,), dtype=torch.uint8, device=streams.device)
        came = torch.zeros_like(sent)
        stream.wait(streams.now())
        began = ended = stream.record()
        for turns in (1, _TURNS):  # the first one warms up
            began = stream.record()
            for _ in range(turns):
                nccl.call("start a group", nccl.group_start)
                for what, call, tensor in (
                    ("send", communicator.send, sent),
                    ("receive", communicator.recv, came),
                ):
                    nccl.call(what, call, tensor.data_ptr(), nbytes, code, 0, stream.handle)
                nccl.call("launch a group", nccl.group_end)
            ended = stream.record()
        streams.hold(ended, lambda: nccl.call("go on", communicator.check_async_error))
        if not torch.equal(sent, came):
            raise TransportError(f"NCCL: {nbytes} bytes to oneself came as others")
        found[str(nbytes)] = _TURNS * nbytes / ended.since(began)
    nccl.call("abort", communicator.abort)
    return {"bytes_per_s": found}
