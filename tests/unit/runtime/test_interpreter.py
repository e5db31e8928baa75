import time

import pytest

from disagmoe.runtime.step import WorkerRuntime
from disagmoe.schedule.from_config import compile_for
from disagmoe.schedule.ir import Op, Transfer
from disagmoe.schedule.layout import Worker
from tests.unit.runtime.tiny import batch_of, threads, tiny


def payload_bytes(config_hidden: int, rows: int) -> int:
    return 8 * config_hidden * rows


def test_traffic_is_what_left_on_each_channel() -> None:
    """All tokens of one worker go to one expert worker: 20 rows per layer, fp64 of width 8."""
    config = tiny()
    with threads(config, [batch_of(config)]) as run:
        run.each(lambda runtime: runtime.run_step(0))
        traffic = {
            name: (one.messages, one.nbytes)
            for runtime in run.workers.values()
            for name, one in runtime.interpreter.traffic.items()
        }
    layers, micro_batches, rows, pairs = 2, 2, 20, 40
    row_bytes = payload_bytes(config.model.hidden, rows)
    assert traffic == {
        "A0>F0.act": (layers * micro_batches, layers * (row_bytes + pairs * (8 + 4 + 4))),
        "F0>A0.act": (layers * micro_batches, layers * row_bytes),
        "A0>F0.grad": (layers * micro_batches, layers * row_bytes),
        "F0>A0.grad": (layers * micro_batches, layers * (row_bytes + pairs * 8)),
    }


def test_traffic_of_several_workers_counts_rows_once_per_worker() -> None:
    """Rows are sent once to each expert worker, not once per expert; `none` sends every choice."""
    nbytes = {}
    for dedupe in ("rank", "none"):
        config = tiny(parallel__dedupe=dedupe, model__top_k=4, parallel__expert_workers=2)
        with threads(config, [batch_of(config)]) as run:
            run.each(lambda runtime: runtime.run_step(0))
            attention: WorkerRuntime = run.workers[Worker.parse("A0.0")]
            nbytes[dedupe] = attention.interpreter.traffic["A0>F0.grad"].nbytes
    rows = 2 * 20 * 2  # layers, tokens, expert workers
    assert nbytes == {
        "rank": payload_bytes(8, rows),
        "none": payload_bytes(8, 2 * rows),
    }


@pytest.mark.parametrize("schedule", ["af_pipe", "ep_overlap"])
def test_hops_are_the_ends_of_all_transfers(schedule: str) -> None:
    config = tiny(parallel__schedule=schedule, trace__first_step=0, trace__steps=1)
    compiled, _ = compile_for(config)
    with threads(config, [batch_of(config)]) as run:
        reports = run.each(lambda runtime: runtime.run_step(0))
    for worker, report in reports.items():
        assert report.trace is not None
        expected = sorted(
            (str(i.channel), f"L{i.layer} m{i.mb}", i.op is Op.POST_SEND)
            for i in compiled.programs.of(worker.group).instructions
            if isinstance(i, Transfer) and i.op in (Op.POST_SEND, Op.POST_RECV, Op.EXCHANGE)
        )
        assert sorted((h.channel, h.label, h.sends) for h in report.trace.hops) == expected
        assert all(hop.start_s <= hop.end_s and hop.nbytes > 0 for hop in report.trace.hops)


def test_position_tells_how_far_a_step_is() -> None:
    config = tiny()
    compiled, _ = compile_for(config)
    begin = time.monotonic()
    with threads(config, [batch_of(config)]) as run:
        run.each(lambda runtime: runtime.run_step(0))
        for worker, runtime in run.workers.items():
            instructions = compiled.programs.of(worker.group).instructions
            interpreter = runtime.interpreter
            assert interpreter.position == len(instructions) - 1
            assert interpreter.instruction == str(instructions[-1]) == "update"
            assert begin < interpreter.progressed_at_s <= time.monotonic()
