"""What leaves a worker, message by message."""

from collections.abc import Mapping

import torch

from disagmoe.transport.counted import CountedChannel, Traffic


class Quiet:
    """A channel that does nothing, and its own work."""

    def __init__(self) -> None:
        self.posts: list[tuple[Mapping[str, torch.Tensor], Mapping[str, torch.Tensor]]] = []

    def post(
        self, sends: Mapping[str, torch.Tensor], recvs: Mapping[str, torch.Tensor], label: str
    ) -> "Quiet":
        self.posts.append((sends, recvs))
        return self

    def wait(self) -> None:
        pass


def test_messages_to_others_with_elements_count() -> None:
    quiet = Quiet()
    channel = CountedChannel(quiet, "C0.0")
    one, three = torch.zeros(1, dtype=torch.float64), torch.zeros(3, dtype=torch.int32)
    sends = {"C0.0": three, "C0.1": one, "C0.2": three[:0], "C0.3": three}
    assert channel.post(sends, {"C0.1": one}) is quiet
    channel.post({"C0.1": one}, {})
    assert quiet.posts == [(sends, {"C0.1": one}), ({"C0.1": one}, {})]
    assert channel.take() == Traffic(messages=3, nbytes=8 + 12 + 8)
    assert channel.take() == Traffic(messages=0, nbytes=0)
