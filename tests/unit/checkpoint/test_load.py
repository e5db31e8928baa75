import math
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from disagmoe.checkpoint.load import Wanted, load, load_random
from disagmoe.checkpoint.slices import Kind, Slice
from disagmoe.errors import CheckpointError
from tests.unit.checkpoint.saved import saved, small, values

SHAPES = {"embed": (5, 4), "norm": (7,), "layers.0.experts.3.gate": (3, 11)}
FULL = (Kind.MASTER, Kind.EXP_AVG, Kind.EXP_AVG_SQ)


def wanted(
    name: str, start: int, stop: int, kind: Kind = Kind.MASTER, shape: tuple[int, ...] = (4, 6)
) -> Wanted:
    target = torch.full((stop - start,), math.nan)
    return Wanted(Slice(name, shape, start, stop), kind, target)


@st.composite
def partitions(draw: st.DrawFn) -> list[dict[str, list[tuple[int, int]]]]:
    """Every element of every parameter on one of a few workers."""
    workers: list[dict[str, list[tuple[int, int]]]] = [{} for _ in range(draw(st.integers(1, 4)))]
    for name, shape in SHAPES.items():
        size = math.prod(shape)
        cuts = draw(st.sets(st.integers(1, size - 1), max_size=len(workers) - 1))
        bounds = [0, *sorted(cuts), size]
        owners = draw(st.permutations(range(len(workers))))
        for owner, start, stop in zip(owners, bounds, bounds[1:], strict=False):
            workers[owner][name] = [(start, stop)]
    return workers


@settings(max_examples=40)
@given(partitions(), partitions(), st.booleans())
def test_what_one_partition_saved_another_loads(
    before: list[dict[str, list[tuple[int, int]]]],
    after: list[dict[str, list[tuple[int, int]]]],
    with_weights: bool,
) -> None:
    whole = values(SHAPES)
    kinds = (*FULL, Kind.WEIGHT) if with_weights else FULL
    with tempfile.TemporaryDirectory() as folder:
        place, manifest = saved(Path(folder), whole, before, kinds=kinds)
        for own in after:
            asked = [
                Wanted(
                    Slice(name, SHAPES[name], start, stop),
                    kind,
                    torch.full(
                        (stop - start,),
                        math.nan,
                        dtype=torch.bfloat16 if kind is Kind.WEIGHT else torch.float32,
                    ),
                )
                for name, bounds in own.items()
                for start, stop in bounds
                for kind in Kind
            ]
            load(place, manifest, asked)
            for item in asked:
                cut = whole[item.kind, item.slice.name].flatten()
                assert torch.equal(item.target, cut[item.slice.start : item.slice.stop])


def test_random_numbers_are_those_of_the_worker_of_the_same_name(tmp_path: Path) -> None:
    place, manifest = small(tmp_path)
    (state,) = load_random(place, manifest, "A0.1").items()
    assert (state[0], state[1].tolist()) == ("cpu", list(range(1, 17)))
    assert load_random(place, manifest, "A0.2") == {}


def test_another_model_is_refused(tmp_path: Path) -> None:
    place, manifest = small(tmp_path)
    with pytest.raises(CheckpointError, match=r"step-1: has no parameter c; .* another model"):
        load(place, manifest, [wanted("c", 0, 1)])
    with pytest.raises(
        CheckpointError, match=r"step-1: a has shape \(4, 6\) there and \(6, 4\) here"
    ):
        load(place, manifest, [wanted("a", 0, 24, shape=(6, 4))])


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    whole = values({"a": (4, 6)})
    place, manifest = saved(tmp_path, whole, [{"a": [(0, 24)]}], kinds=FULL[:2])
    with pytest.raises(CheckpointError, match=r"A0\.0\.safetensors: lacks exp_avg_sq/a; restore"):
        load(place, manifest, [wanted("a", 0, 24, Kind.EXP_AVG_SQ)])
    entry = manifest.parameters["a"].model_copy(update={"slices": [(0, 10, 0), (12, 24, 0)]})
    holed = manifest.model_copy(update={"parameters": {"a": entry}})
    with pytest.raises(CheckpointError, match=r"lacks elements 10 to 12 of a, of 24"):
        load(place, holed, [wanted("a", 5, 20)])


def test_only_files_that_are_needed_are_read(tmp_path: Path) -> None:
    place, manifest = small(tmp_path)
    (tmp_path / "step-1/A0.1.safetensors").unlink()
    item = wanted("a", 3, 9)
    load(place, manifest, [item])
    assert item.target.tolist() == [3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    with pytest.raises(CheckpointError, match=r"A0\.1\.safetensors: is missing"):
        load(place, manifest, [wanted("b", 0, 7, shape=(7,))])
