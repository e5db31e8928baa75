"""Ops of a step ask the device for nothing, except in `to_host`; seen without a device, by the
operations that would stop the host on CUDA."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from disagmoe.config.load import load_run_config, override
from disagmoe.config.resolve import resolve
from disagmoe.runtime.attention import AttentionSide
from disagmoe.runtime.experts import ExpertSide
from disagmoe.runtime.step import WorkerRuntime
from tests.unit.runtime import tiny

ROOT = Path(__file__).parents[3]
# torch.cuda.set_sync_debug_mode knows the same ones at run time
METHODS = {"tolist", "item", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__"}
OPERATIONS = {
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::bincount",
    "aten::masked_select",
    "aten::repeat_interleave",
    "aten::equal",
    "aten::_unique2",
}
INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}


class SyncError(Exception):
    """The host would wait here."""


def allowed() -> bool:
    """Whether `to_host` is on the way to here."""
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "to_host":
            return True
        frame = frame.f_back
    return False


class NoMethods(TorchFunctionMode):
    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if getattr(function, "__name__", "") in METHODS and not allowed():
            raise SyncError(function.__name__)
        return function(*args, **(kwargs or {}))


class NoOperations(TorchDispatchMode):
    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = function.name().partition(".")[0]
        masks = name in INDEXING and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        kwargs = kwargs or {}
        sized = kwargs.get("output_size") is not None  # then the device need not be asked
        if (masks or (name in OPERATIONS and not sized)) and not allowed():
            raise SyncError(name)
        return function(*args, **kwargs)


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Let ops of both sides run without syncs; count how often each op runs."""
    ran: dict[str, int] = {}

    def watched(compute: Callable[..., None]) -> Callable[..., None]:
        def run(self: Any, instruction: Any) -> None:
            ran[str(instruction.op)] = ran.get(str(instruction.op), 0) + 1
            with NoMethods(), NoOperations():
                compute(self, instruction)

        return run

    for side in (AttentionSide, ExpertSide):
        monkeypatch.setattr(side, "compute", watched(side.compute))
    return ran


@pytest.mark.parametrize(
    "sets",
    [
        [],
        ["parallel.groups=2", "parallel.expert_workers=2"],
        ["parallel.groups=2", "parallel.residual=direct", "parallel.dedupe=none"],
        ["model.forced_balance=true"],
        ["train.loss.aux_scope=micro_batch", "parallel.split_backward=true"],
    ],
)
def test_no_op_stops_the_host(strict: dict[str, int], sets: list[str]) -> None:
    tiny.one_step(resolve(override(tiny.BASE, sets), cuda=False))
    assert {"attn_fwd", "attn_bwd", "experts_fwd", "head"} <= set(strict)


@pytest.mark.parametrize(
    ("name", "sets"),
    [
        ("tiny_gpt_oss", []),
        ("tiny_deepseek_v3", ["parallel.shared_experts=expert", "parallel.groups=2"]),
    ],
)
def test_no_op_of_other_families_stops_the_host(
    strict: dict[str, int], name: str, sets: list[str]
) -> None:
    config = load_run_config(ROOT / "configs" / f"{name}.toml", ["parallel.profile=off", *sets])
    tiny.one_step(resolve(config, cuda=False))
    assert {"attn_fwd", "attn_bwd", "experts_fwd", "experts_bwd"} <= set(strict)


HOST_MEMORY = {"check_counts", "hear", "decode", "count_valid"}
"""Functions that read tensors which are in host memory on every device."""
ENDS = {"all_finite": 2, "squared_norm": 1, "sums": 3, "encode": 1}
"""How often a worker with one segment of parameters reads the device at the end of a step."""


def place() -> str:
    """The nearest function of the package on the way to here."""
    frame: Any = sys._getframe()
    while frame is not None:
        if "/disagmoe/" in frame.f_code.co_filename and "<" not in frame.f_code.co_name:
            return str(frame.f_code.co_name)
        frame = frame.f_back
    return "?"


class Places(TorchFunctionMode):
    """Counts reads by the functions that make them."""

    def __init__(self, seen: dict[str, int]) -> None:
        super().__init__()
        self._seen = seen

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if getattr(function, "__name__", "") in METHODS:
            self._seen[place()] = self._seen.get(place(), 0) + 1
        return function(*args, **(kwargs or {}))


def test_a_whole_step_reads_the_device_at_the_counted_places_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: dict[str, dict[str, int]] = {}
    run_step = WorkerRuntime.run_step

    def counted(self: WorkerRuntime, step: int) -> Any:
        with Places(seen.setdefault(self._me, {})):
            return run_step(self, step)

    monkeypatch.setattr(WorkerRuntime, "run_step", counted)
    config = resolve(tiny.BASE, cuda=False)
    tiny.one_step(config)
    assert set(seen) == {"A0.0", "F0.0"}
    # whom each token goes to; an expert worker without a grouped GEMM asks, too
    assert seen["A0.0"]["to_host"] == config.model.layers * config.micro_batches
    # how many rows routing has asked for, which attention workers know
    seen["A0.0"]["_hops"] -= 1
    for reads in seen.values():
        counted = {name: count for name, count in reads.items() if name not in HOST_MEMORY}
        counted.pop("to_host")
        assert {name: count for name, count in counted.items() if count} == ENDS


@pytest.mark.parametrize(
    "sync",
    [
        lambda x: x.tolist(),
        lambda x: x.sum().item(),
        lambda x: x.cpu(),
        lambda x: bool(x.any()),
        lambda x: x[x > 1],
        lambda x: x.bincount(),
        lambda x: x.nonzero(),
        lambda x: x.repeat_interleave(x),
    ],
)
def test_syncs_are_seen(sync: Callable[[torch.Tensor], object]) -> None:
    with pytest.raises(SyncError), NoMethods(), NoOperations():
        sync(torch.arange(4))
