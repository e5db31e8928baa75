"""Ops of a step ask the device for nothing, except in `to_host`; seen without a device, by the
operations that would stop the host on CUDA."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from disagmoe.config.load import override
from disagmoe.config.resolve import resolve
from disagmoe.runtime.attention import AttentionSide
from disagmoe.runtime.experts import ExpertSide
from tests.unit.runtime import tiny

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
        if (name in OPERATIONS or masks) and not allowed():
            raise SyncError(name)
        return function(*args, **(kwargs or {}))


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
