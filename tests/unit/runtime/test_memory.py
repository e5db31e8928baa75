"""What is said of memory when it does not suffice."""

import os
from pathlib import Path

import pytest
import torch

from disagmoe.costs.memory import MemoryUse
from disagmoe.errors import WorkerError
from disagmoe.runtime import memory
from disagmoe.runtime.context import Context
from disagmoe.runtime.memory import (
    Measured,
    available_memory_bytes,
    is_out_of_memory,
    measure,
    memory_explained,
    memory_table,
    predict,
)
from disagmoe.schedule.from_config import compile_for
from disagmoe.schedule.ir import Compute, GroupProgram, Instruction, Op
from disagmoe.units import GIB
from tests.unit.runtime import tiny


def program_of(context: Context) -> GroupProgram:
    train, _ = compile_for(context.config)
    return train.programs.part(context.worker.group)


def test_the_table_has_predicted_and_measured_bytes() -> None:
    predicted = MemoryUse(
        weights=2 * GIB,
        gradients=4 * GIB,
        optimizer=12 * GIB,
        slots=6 * GIB,
        workspace=1 * GIB,
        head=2 * GIB,
        headroom=3 * GIB,
        system=2 * GIB,
        worst_case=9 * GIB,
    )
    measured = Measured(
        weights=2 * GIB,
        gradients=4 * GIB,
        optimizer=12 * GIB,
        peak=40 * GIB,
        unused=5 * GIB,
        system=1 * GIB,
        capacity=79 * GIB,
    )
    assert memory_table(predicted, measured).splitlines() == [
        "bytes at the fullest moment           predicted   measured",
        "weights                                 2.0 GiB    2.0 GiB",
        "gradient sums                           4.0 GiB    4.0 GiB",
        "optimizer                              12.0 GiB   12.0 GiB",
        "activations, messages, temporaries      9.0 GiB   22.0 GiB",
        "more tokens at one worker               3.0 GiB          -",
        "held by torch, not in use                     -    5.0 GiB",
        "device and libraries                    2.0 GiB    1.0 GiB",
        "total                                  32.0 GiB   46.0 GiB",
        "there is                                      -   79.0 GiB",
    ]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("worker", ["A0.0", "F0.0"])
def test_what_a_plan_says_of_parameters_is_what_a_worker_holds(precision: str, worker: str) -> None:
    config = tiny.tiny(train__precision=precision)
    with tiny.threads(config, [tiny.batch_of(config)]) as run:
        name, runtime = next((str(w), r) for w, r in run.workers.items() if str(w) == worker)
        measured = measure(runtime.parameters, runtime.update, torch.device("cpu"))
    context = tiny.context_of(config, name)
    predicted = predict(context, program_of(context))
    assert predicted is not None
    assert (measured.weights, measured.gradients, measured.optimizer) == (
        predicted.weights,
        predicted.gradients,
        predicted.optimizer,
    )
    assert measured.peak > 10**7


def test_a_device_is_asked_for_what_its_allocator_and_others_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = {"max_memory_allocated": 50, "memory_reserved": 60, "max_memory_reserved": 70}
    for name, nbytes in told.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, nbytes=nbytes: nbytes * GIB)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (15 * GIB, 79 * GIB))
    config = tiny.tiny()
    with tiny.threads(config, [tiny.batch_of(config)]) as run:
        runtime = next(iter(run.workers.values()))
        measured = measure(runtime.parameters, runtime.update, torch.device("cuda"))
    assert (measured.peak, measured.unused, measured.system, measured.capacity) == (
        50 * GIB,
        20 * GIB,
        4 * GIB,
        79 * GIB,
    )
    assert measured.total == 74 * GIB


def test_nothing_is_predicted_for_a_precision_without_rates() -> None:
    context = tiny.context_of(tiny.tiny(train__precision="fp64"), "A0.0")
    assert predict(context, program_of(context)) is None
    few = Measured(weights=1, gradients=2, optimizer=3, peak=4)
    assert memory_table(None, few).splitlines()[1].split() == ["weights", "-", "1", "B"]


def test_a_step_without_memory_names_the_instruction_and_shows_the_table() -> None:
    config = tiny.tiny(train__precision="fp32")

    def allocate(instruction: Instruction) -> None:
        if isinstance(instruction, Compute) and instruction.op is Op.EXPERTS_FWD:
            torch.empty(2**50, dtype=torch.uint8)

    with tiny.threads(config, [tiny.batch_of(config)], timeout_s=5) as run:
        for runtime in run.workers.values():
            runtime.interpreter.probe = allocate
        with pytest.raises(WorkerError) as caught:
            run.each(lambda runtime: runtime.run_step(0))
    first, *table = str(caught.value).splitlines()
    assert "F0.0 failed at instruction" in first
    assert "'experts_fwd L0 m0': RuntimeError" in first
    heads = [line for line in table if line.startswith("bytes at the fullest moment")]
    assert heads == ["bytes at the fullest moment           predicted   measured"]
    assert caught.value.__cause__ is not None
    assert is_out_of_memory(caught.value.__cause__)


def test_other_failures_have_no_table() -> None:
    with pytest.raises(WorkerError, match=r"^no$"), memory_explained(lambda: "a table"):
        raise WorkerError("no") from ValueError("other")


def test_cuda_has_an_error_of_its_own() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert not is_out_of_memory(RuntimeError("other"))


@pytest.mark.parametrize(
    ("limit", "used", "expected"),
    [("max", "5000", 4 * GIB), (f"{3 * GIB}", f"{GIB}", 2 * GIB), (f"{9 * GIB}", "1", 4 * GIB)],
)
def test_available_is_what_machine_and_container_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, used: str, expected: int
) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemTotal:  99999999 kB\nMemAvailable:  {4 * GIB // 1024} kB\n")
    monkeypatch.setattr(memory, "_MEMINFO", meminfo)
    monkeypatch.setattr(memory, "_CGROUP", tmp_path / "cgroup")
    assert available_memory_bytes() == 4 * GIB
    (tmp_path / "cgroup").mkdir()
    (tmp_path / "cgroup" / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "cgroup" / "memory.current").write_text(f"{used}\n")
    assert available_memory_bytes() == expected
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "none")
    assert available_memory_bytes() == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
