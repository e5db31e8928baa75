"""Whom a worker waits for at an instruction."""

from pathlib import Path

import pytest
import torch

from disagmoe.config.resolve import resolve
from disagmoe.config.run import RunConfig
from disagmoe.runtime.awaited import awaited
from disagmoe.runtime.context import Context
from disagmoe.schedule.accounting import Kind
from disagmoe.schedule.from_config import compile_for
from disagmoe.schedule.ir import Compute, Instruction, Op, StepEnd, Transfer
from disagmoe.schedule.layout import Channel, Worker

ROOT = Path(__file__).resolve().parents[3]
SETS = ["parallel.attention_workers=2", "parallel.expert_workers=3"]
WAITS = Kind.RECV_WAIT


def context(worker: str) -> Context:
    config = resolve(RunConfig.load(ROOT / "configs/tiny.toml", SETS), cuda=False)
    spec = compile_for(config)[0].programs.spec
    return Context(config, spec, Worker.parse(worker), torch.device("cpu"))


def wait(channel: str) -> Transfer:
    return Transfer(Op.WAIT, Channel.parse(channel), 0, 0)


@pytest.mark.parametrize(
    ("worker", "instruction", "peers"),
    [
        ("A0.0", wait("F0>A0.act"), ("F0.0", "F0.1", "F0.2")),
        ("A0.0", wait("A0>F0.act"), ("F0.0", "F0.1", "F0.2")),
        ("F0.1", wait("A0>F0.act"), ("A0.0", "A0.1")),
        ("A0.0", Compute(Op.REDUCE_COUNTS, 0, 0), ("A0.1",)),
        ("F0.1", StepEnd(Op.REDUCE_WORLD), ("A0.0", "A0.1", "F0.0", "F0.2")),
        ("A0.1", StepEnd(Op.REDUCE_GRADS), ("A0.0",)),
        ("A0.1", Compute(Op.ATTN_FWD, 0, 0), ()),
        ("A0.1", None, ()),
    ],
)
def test_a_waiting_worker(worker: str, instruction: Instruction | None, peers: tuple) -> None:
    assert awaited(instruction, WAITS, context(worker)) == peers
    assert awaited(instruction, Kind.COMPUTE, context(worker)) == ()
