import time

import pytest

from disagmoe.schedule.from_config import compile_for
from disagmoe.schedule.ir import Op, Transfer
from tests.unit.runtime.tiny import batch_of, threads, tiny


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
