"""The real library in actors of Ray: one makes an id, the other gets it by the run's store."""

from contextlib import closing
from typing import Any

import pytest
import ray
import torch

from disagmoe.cluster.local import local_ray
from disagmoe.errors import TransportError
from disagmoe.transport.nccl_library import load_nccl
from disagmoe.transport.rendezvous import StoreServer, connect

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.cupy,
]


class _Member:
    """A worker as far as joining a communicator."""

    def __init__(self, host: str, port: int) -> None:
        self._store = connect(host, port, 20.0)
        self._nccl = load_nccl()

    def publish(self) -> bytes:
        made = self._nccl.unique_id()
        self._store.set("id", made.hex())
        return made

    def receive(self) -> bytes:
        return bytes.fromhex(bytes(self._store.get("id")).decode())

    def join_alone(self) -> str:
        if torch.cuda.is_available():
            return ""
        try:
            self._nccl.communicator(1, self._nccl.unique_id(), 0)
        except TransportError as error:
            return str(error)
        return "joined without a device"


Member: Any = ray.remote(num_cpus=0)(_Member)


def test_an_id_goes_from_one_actor_to_another() -> None:
    with local_ray(2, 1), closing(StoreServer("127.0.0.1")) as server:
        first, second = (Member.remote(server.host, server.port) for _ in range(2))
        made = ray.get(first.publish.remote(), timeout=60)
        assert len(made) == 128
        assert ray.get(second.receive.remote(), timeout=60) == made
        told = ray.get(second.join_alone.remote(), timeout=60)
    assert told == "" or told.startswith("NCCL cannot join a communicator: status 1, a CUDA")
