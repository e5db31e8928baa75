"""What is copied through host memory, and what is not."""

from collections.abc import Mapping

import torch

from disagmoe.transport.staged import StagedChannel

DEVICE = torch.device("cpu")  # stands for a device of its own
OTHER = torch.device("meta")


class Recorder:
    """A channel that keeps what is posted, and receives sevens."""

    def __init__(self) -> None:
        self.sends: Mapping[str, torch.Tensor] = {}
        self.recvs: Mapping[str, torch.Tensor] = {}

    def post(
        self, sends: Mapping[str, torch.Tensor], recvs: Mapping[str, torch.Tensor], label: str
    ) -> "Recorder":
        self.sends, self.recvs = sends, recvs
        return self

    def wait(self) -> None:
        for tensor in self.recvs.values():
            tensor.fill_(7)


def test_a_sent_tensor_is_copied_when_posted() -> None:
    inner, sent = Recorder(), torch.ones(3, 2)
    StagedChannel(inner, DEVICE).post({"F0.0": sent}, {})
    sent.zero_()
    assert torch.equal(inner.sends["F0.0"], torch.ones(3, 2))


def test_a_received_tensor_is_filled_by_the_wait() -> None:
    received = torch.zeros(3, dtype=torch.bfloat16)
    work = StagedChannel(Recorder(), DEVICE).post({}, {"F0.0": received})
    assert torch.equal(received, torch.zeros(3, dtype=torch.bfloat16))
    work.wait()
    assert torch.equal(received, torch.full((3,), 7, dtype=torch.bfloat16))


def test_tensors_elsewhere_pass_through() -> None:
    inner, sent, received = Recorder(), torch.ones(2), torch.zeros(2)
    StagedChannel(inner, OTHER).post({"F0.0": sent}, {"F0.0": received}).wait()
    assert inner.sends["F0.0"] is sent
    assert inner.recvs["F0.0"] is received
    assert torch.equal(received, torch.full((2,), 7.0))
