"""Faults on purpose: where, and how often."""

import resource
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from disagmoe.actors.failure import failure_of
from disagmoe.actors.injector import (
    Injection,
    Injector,
    armed,
    fired_at,
    install,
    note_fired,
    phase_of,
    read_plan,
    write_plan,
)
from disagmoe.actors.messages import FailureKind
from disagmoe.schedule.ir import Compute, Free, Op, Slot, SlotKind, StepEnd
from disagmoe.schedule.layout import Side

FORWARD = Compute(Op.ATTN_FWD, 0, 0)


def fault(**changes: Any) -> Injection:
    given = {"number": 0, "kind": "exception", "phase": "forward", "worker": "A0.0", "step": 2}
    return Injection(**{**given, **changes})


def runtime(step: int) -> Any:
    segments = {
        "a": SimpleNamespace(flat_grad=torch.zeros(2, 3)),
        "b": SimpleNamespace(flat_grad=torch.zeros(0)),
    }
    return SimpleNamespace(
        step_under_way=step,
        parameters=SimpleNamespace(segments=segments),
        interpreter=SimpleNamespace(probe=None),
        saver=SimpleNamespace(probe=None),
    )


@pytest.mark.parametrize(
    ("instruction", "phase"),
    [
        (FORWARD, "forward"),
        (Compute(Op.HEAD, None, 0), "backward"),
        (Compute(Op.EXPERTS_BWD, 0, 0), "backward"),
        (StepEnd(Op.REDUCE_GRADS), "reduction"),
        (StepEnd(Op.REDUCE_WORLD), "reduction"),
        (StepEnd(Op.UPDATE), "optimizer"),
        (Free(Slot(Side.ATTENTION, SlotKind.HIDDEN, 0, 0)), None),
    ],
)
def test_phases(instruction: Any, phase: str | None) -> None:
    assert phase_of(instruction) == phase


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    plan = [fault(), fault(number=1, kind="kill", skip=3)]
    write_plan(tmp_path, plan)
    assert read_plan(tmp_path) == plan


def test_a_fault_happens_once_at_its_step_after_others_of_its_phase(tmp_path: Path) -> None:
    inject = Injector(tmp_path, [fault(skip=1)], now := runtime(1))
    inject.at_instruction(FORWARD)
    now.step_under_way = 2
    inject.at_instruction(FORWARD)
    inject.at_instruction(StepEnd(Op.UPDATE))
    assert fired_at(tmp_path, 0) is None
    with pytest.raises(RuntimeError, match="drill: fault 0"):
        inject.at_instruction(FORWARD)
    assert fired_at(tmp_path, 0) is not None
    inject.at_instruction(FORWARD)
    again = Injector(tmp_path, [fault()], runtime(2))  # in another process, after a restart
    again.at_instruction(FORWARD)


def test_a_fault_that_was_too_early_in_its_step_comes_in_a_later_one(tmp_path: Path) -> None:
    inject = Injector(tmp_path, [fault()], runtime(5))
    with pytest.raises(RuntimeError, match="drill: fault 0"):
        inject.at_instruction(FORWARD)


def test_what_belongs_to_a_step_comes_in_no_other(tmp_path: Path) -> None:
    now = runtime(5)
    plan = [fault(kind="nan", phase="reduction", again=True)]
    Injector(tmp_path, plan, now).at_instruction(StepEnd(Op.REDUCE_GRADS))
    assert not now.parameters.segments["a"].flat_grad.isnan().any()


def test_a_process_meets_one_fault_that_ends_its_epoch(tmp_path: Path) -> None:
    nan = fault(number=1, kind="nan", again=True)
    plan = [fault(), nan, fault(number=2), fault(number=3, kind="driver"), fault(number=4)]
    write_plan(tmp_path, plan)
    met = []
    for one in (0, 2, 3, 4):
        met.append([due.number for due in armed(tmp_path, plan)])
        assert note_fired(tmp_path, one)
    assert met == [[1, 0], [1, 2], [1, 3], [1, 4]]
    assert armed(tmp_path, plan) == [nan]


def test_a_worker_whose_disk_is_full_can_say_that_a_fault_happens(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        assert note_fired(tmp_path, 0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    fired_s = fired_at(tmp_path, 0)
    assert fired_s is not None
    assert abs(fired_s - time.time()) < 60


def test_one_that_comes_back_does(tmp_path: Path) -> None:
    assert note_fired(tmp_path, 0)
    assert not note_fired(tmp_path, 0)
    with pytest.raises(RuntimeError):
        Injector(tmp_path, [fault(again=True)], runtime(2)).at_instruction(FORWARD)


def test_a_gradient_becomes_nan(tmp_path: Path) -> None:
    now = runtime(2)
    plan = [fault(kind="nan", phase="reduction")]
    Injector(tmp_path, plan, now).at_instruction(StepEnd(Op.REDUCE_GRADS))
    assert now.parameters.segments["a"].flat_grad.isnan().sum() == 1


def test_memory_that_is_not_there_is_a_failure_of_its_own_kind(tmp_path: Path) -> None:
    plan = [fault(kind="memory")]
    with pytest.raises(RuntimeError) as caught:
        Injector(tmp_path, plan, runtime(2)).at_instruction(FORWARD)
    failure = failure_of("A0.0", caught.value)
    assert failure.kind is FailureKind.MEMORY
    assert "with a smaller parallel.micro_batch_size" in failure.message


def test_only_a_drill_puts_faults_into_a_worker(tmp_path: Path) -> None:
    write_plan(tmp_path, [fault(), fault(number=1, worker="F0.0")])
    for worker, environ, expected in (
        ("A0.0", {}, False),
        ("A0.0", {"DISAGMOE_DRILL": str(tmp_path)}, True),
        ("F0.0", {"DISAGMOE_DRILL": str(tmp_path)}, False),
    ):
        install(now := runtime(0), worker, environ)
        assert (now.interpreter.probe is not None) == expected
        assert (now.saver.probe is not None) == expected
