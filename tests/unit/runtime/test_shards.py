"""Slices of all workers together are every element of every parameter once."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from disagmoe.checkpoint.slices import Kind, Slice
from disagmoe.model import names
from disagmoe.model.partition import LocalTensor, model_tensors
from disagmoe.runtime.shards import ShardSlice, live_slices, shard_slices
from tests.unit.runtime.tiny import threads, tiny

LAYOUTS = [
    {},
    {"parallel__groups": 2, "parallel__attention_workers": 2, "parallel__expert_workers": 4},
    {"parallel__attention_workers": 3, "parallel__expert_workers": 3, "parallel__rings": 2},
    {"parallel__groups": 2, "parallel__residual": '"direct"', "model__tied_embeddings": True},
    {"parallel__schedule": '"ep_1f1b"', "parallel__groups": 2, "parallel__rings": 2},
]


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("sets", LAYOUTS, ids=str)
def test_each_element_is_in_one_slice_with_its_own_state(
    sets: dict[str, object], precision: str
) -> None:
    config = tiny(**sets, train__precision=precision)
    seen: Counter[tuple[str, int]] = Counter()
    kinds = set(Kind) if precision == "bf16" else set(Kind) - {Kind.WEIGHT}
    with threads(config, []) as run:
        for runtime in run.workers.values():
            whole = runtime.parameters.global_values()
            for live in live_slices(runtime.update):
                cut = live.slice
                assert live.tensors.keys() == kinds
                part = whole[cut.name].flatten()[cut.start : cut.stop]
                assert cut.shape == whole[cut.name].shape
                for kind in kinds & {Kind.WEIGHT, Kind.MASTER}:
                    assert torch.equal(live.tensors[kind].to(part.dtype), part)
                seen.update((cut.name, at) for at in range(cut.start, cut.stop))
    shapes = names.global_shapes(config.model)
    everything = {(name, at) for name, s in shapes.items() for at in range(math.prod(s))}
    assert seen.keys() == everything
    assert set(seen.values()) == {1}


TENSORS = model_tensors(tiny().model)
SIZE = sum(math.prod(tensor.shape) for tensor in TENSORS)


@given(st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)).map(sorted))
def test_a_shard_is_cut_where_parameters_end(bounds: list[int]) -> None:
    start, stop = bounds
    flat = torch.arange(SIZE)
    by_name: dict[str, torch.Tensor] = {}
    at = 0
    for local in TENSORS:
        size = math.prod(local.shape)
        by_name |= local.split(flat[at : at + size].view(local.shape))
        at += size
    found = list(shard_slices(TENSORS, start, stop))
    assert [item.at for item in found] == sorted(item.at for item in found)
    elements = []
    for item in found:
        cut = item.slice
        part = by_name[cut.name].flatten()[cut.start : cut.stop]
        assert part.tolist() == list(range(item.at, item.at + len(part)))
        elements += part.tolist()
    assert elements == list(range(start, stop))


def test_an_empty_shard_has_no_slices() -> None:
    whole: list[LocalTensor] = list(TENSORS)
    assert list(shard_slices(whole, 5, 5)) == []
    first = TENSORS[0]
    assert list(shard_slices(whole, 0, 3)) == [ShardSlice(Slice(first.name, first.shape, 0, 3), 0)]
