"""Buffers that are received into again and again."""

import torch

from disagmoe.transport.streams import BufferRing


class Point:
    """An event with a number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def query(self) -> bool:
        return True

    def since(self, earlier: object) -> float:
        return 0.0


def ring() -> tuple[BufferRing, list[int]]:
    made: list[int] = []
    points = iter(range(100))

    def allocate(nbytes: int) -> torch.Tensor:
        made.append(nbytes)
        return torch.empty(nbytes, dtype=torch.uint8)

    return BufferRing(allocate, lambda: Point(next(points))), made


def test_a_buffer_waits_for_its_last_reader_alone() -> None:
    buffers, made = ring()
    first, second = buffers.take(1000), buffers.take(1000)
    buffers.give_back(first)  # point 2
    buffers.give_back(second)  # point 3
    again = buffers.take(900)
    assert (again.data_ptr(), len(again)) == (first.data_ptr(), 900)
    assert buffers.after(again).number == 2
    assert made == [1024, 1024]


def test_a_ring_grows_by_replacing() -> None:
    buffers, made = ring()
    small = buffers.take(600)
    buffers.give_back(small)
    large = buffers.take(5000)
    assert made == [640, 5120]
    assert buffers.nbytes == 5120
    buffers.give_back(large)
    assert len(buffers.take(3000)) == 3000
    assert made == [640, 5120]


def test_other_tensors_are_not_of_the_ring() -> None:
    buffers, _ = ring()
    assert buffers.after(torch.zeros(4)) is None
