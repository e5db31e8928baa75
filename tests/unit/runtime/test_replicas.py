from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from disagmoe.model.partition import LocalTensor, Part
from disagmoe.runtime.parameters import Segment, SegmentKind
from disagmoe.runtime.replicas import Replicas
from disagmoe.transport.base import ChannelSpec
from disagmoe.transport.inproc import InprocHub

SHAPES = {"w.weight": (2, 3), "norm.weight": (3,), "v.weight": (1, 2)}


def segment(value: float = 0.0) -> Segment:
    tensors = tuple(LocalTensor(n, shape, (Part(n, shape),)) for n, shape in SHAPES.items())
    flat_grad = torch.arange(11, dtype=torch.float32) + value
    return Segment(SegmentKind.ATTENTION, tensors, torch.full((11,), value), flat_grad)


def together(members: int, action: Callable[[Replicas], object]) -> list[object]:
    names = [f"A0.{rank}" for rank in range(members)]
    hub = InprocHub(names, 20.0)

    def run(rank: int) -> object:
        spec = ChannelSpec("replicas", tuple(names), tuple(names))
        held = Replicas(segment(float(rank)), names[rank], names)
        held.connect(hub.transport(names[rank]).open([spec])["replicas"])
        return action(held)

    with ThreadPoolExecutor(members) as pool:
        return list(pool.map(run, range(members)))


def test_pieces_of_all_replicas_cover_every_element_once() -> None:
    for members in (1, 2, 3, 5, 13):
        names = [f"A0.{rank}" for rank in range(members)]
        pieces = [p for me in names for p in Replicas(segment(), me, names).pieces]
        covered = [i for piece in pieces for i in range(piece.start, piece.stop)]
        assert covered == list(range(11))
        assert len({piece.key for piece in pieces}) == len(pieces)


@pytest.mark.parametrize("members", [1, 2, 3, 13])
def test_sum_and_gather_are_those_of_whole_tensors(members: int) -> None:
    def reduce(held: Replicas) -> dict[str, torch.Tensor]:
        return {name: t.clone() for name, t in held.gathered(held.reduce()).items()}

    expected = sum(segment(float(rank)).flat_grad for rank in range(members))
    assert isinstance(expected, torch.Tensor)
    for found in together(members, reduce):
        assert isinstance(found, dict)
        assert {name: tuple(t.shape) for name, t in found.items()} == SHAPES
        assert torch.equal(torch.cat([t.flatten() for t in found.values()]), expected)


def test_updated_shards_reach_all() -> None:
    def update(held: Replicas) -> torch.Tensor:
        rank = held.segment.flat_value[0].item()
        for piece in held.value_pieces().values():
            piece.fill_(10 + rank)
        held.gather_values()
        return held.segment.flat_value

    for flat in together(3, update):
        assert isinstance(flat, torch.Tensor)
        assert flat.tolist() == [10.0] * 4 + [11.0] * 4 + [12.0] * 3


def test_alone_nothing_is_copied() -> None:
    held = Replicas(segment(), "A0.0", ["A0.0"])
    held.connect(None)
    (first, *_) = held.reduce().values()
    assert first.data_ptr() == held.segment.flat_grad.data_ptr()
