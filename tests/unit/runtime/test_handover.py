"""A wait is for the network or for those who send, and the counters say what the trace says."""

import time
from collections.abc import Callable, Mapping
from functools import partial

import pytest
import torch

from disagmoe.runtime.clock import seconds_by_kind
from disagmoe.runtime.handover import Handovers
from disagmoe.schedule.accounting import Shares
from disagmoe.schedule.from_config import compile_for
from disagmoe.schedule.ir import Instruction, Op, Transfer, TransferKey
from disagmoe.schedule.layout import Channel, Worker
from disagmoe.transport.faults import Delay
from tests.unit.runtime.tiny import batch_of, context_of, threads, tiny

LAYOUTS = {
    "split": {"parallel__expert_workers": 2},
    "fused ring": {"parallel__groups": 2, "parallel__attention_workers": 2},
    "direct ring": {"parallel__groups": 2, "parallel__residual": '"direct"'},
    "rings": {"parallel__rings": 2},
    "exposed": {
        "parallel__schedule": "ep_1f1b",
        "parallel__attention_workers": 2,
        "parallel__expert_workers": 2,
    },
    "colocated ring": {"parallel__schedule": "ep_overlap", "parallel__groups": 2},
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_the_shares_of_counters_are_those_of_the_trace(layout: dict[str, object]) -> None:
    config = tiny(trace__first_step=1, trace__steps=1, **layout)
    with threads(config, [batch_of(config)] * 2) as run:
        run.each(lambda runtime: runtime.run_step(0))
        reports = run.each(lambda runtime: runtime.run_step(1))
    for report in reports.values():
        assert report.trace is not None
        traced, counted = Shares.of(seconds_by_kind(report.trace.spans)), Shares.of(report.seconds)
        assert traced.utilisation == pytest.approx(counted.utilisation, abs=0.01)
        assert traced.exposed_communication == pytest.approx(
            counted.exposed_communication, abs=0.01
        )
        assert traced.bubble == pytest.approx(counted.bubble, abs=0.01)
        assert 0 < counted.exposed_communication < 1
        assert 0 < counted.utilisation < 1


@pytest.mark.parametrize("channel", ["A0>F0.act.counts", "A0>F0.act", "A0>F0.grad"])
def test_a_slow_message_is_exposed_communication(channel: str) -> None:
    config = tiny()
    with threads(config, [batch_of(config)]) as run:
        run.hub.inject("A0.0", channel, 0, Delay(0.3))
        reports = run.each(lambda runtime: runtime.run_step(0))
    seconds = reports[Worker.parse("F0.0")].seconds
    assert seconds["recv_wait"] >= 0.25
    assert seconds["idle"] < 0.25


@pytest.mark.parametrize(
    ("schedule", "others"), [("af_pipe", ("F0.0", "F0.1")), ("ep_1f1b", ("C0.1",))]
)
def test_a_slow_sender_is_a_bubble(
    monkeypatch: pytest.MonkeyPatch, schedule: str, others: tuple[str, ...]
) -> None:
    config = tiny(
        parallel__schedule=schedule,
        parallel__attention_workers=2,
        parallel__expert_workers=2,
        trace__first_step=0,
        trace__steps=1,
    )
    with threads(config, [batch_of(config)]) as run:
        slow = next(iter(run.workers.values())).interpreter
        execute = slow._execute

        def executed(instruction: Instruction, step_end: Mapping[Op, Callable[[], None]]) -> None:
            if str(instruction) == "attn_fwd L1 m1":
                time.sleep(0.3)
            execute(instruction, step_end)

        monkeypatch.setattr(slow, "_execute", executed)
        reports = run.each(lambda runtime: runtime.run_step(0))
    for other in others:
        seconds = reports[Worker.parse(other)].seconds
        assert seconds["idle"] >= 0.25
        assert seconds["recv_wait"] + seconds["send"] < 0.25
    for report in reports.values():
        assert report.trace is not None
        # a receive begins when all senders have handed over, not when it was posted
        times_s = [hop.end_s - hop.start_s for hop in report.trace.hops if not hop.sends]
        assert max(times_s) < 0.25


class Post:
    """A world that keeps what is sent, and delivers what it is given."""

    def __init__(self, delivers: Mapping[str, torch.Tensor]) -> None:
        self.sent: dict[str, torch.Tensor] = {}
        self._delivers = delivers

    def post(self, sends: Mapping[str, torch.Tensor], recvs: Mapping[str, torch.Tensor]) -> "Post":
        self.sent = dict(sends)
        assert recvs.keys() == self._delivers.keys()
        for peer, tensor in recvs.items():
            tensor.copy_(self._delivers[peer])
        return self

    def wait(self) -> None:
        pass


def test_the_last_sender_counts_by_the_clock_of_the_receiver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = tiny(parallel__attention_workers=2)
    compiled, _ = compile_for(config)
    key = TransferKey(Channel.parse("A0>F0.act"), 1, 1)

    def heard(
        worker: str, offset_s: float, now_s: float, told: dict[str, torch.Tensor]
    ) -> tuple[dict[TransferKey, float], Post]:
        """Note every transfer of a worker, a second later each time that `key` has come by."""
        mine = Handovers(context_of(config, worker))
        mine.clock_offset_s = offset_s
        program = compiled.programs.of(Worker.parse(worker).group)
        mine.begin(program)
        for instruction in program.instructions:
            if isinstance(instruction, Transfer):
                with monkeypatch.context() as patch:
                    patch.setattr(time, "perf_counter", partial(float, now_s))
                    mine.note(instruction.key)
                now_s += instruction.key == key
        world = Post(told)
        mine.tell(world)
        return mine.hear(), world

    back = {"F0.0": torch.zeros(8, dtype=torch.float64)}
    (_, early), (_, late) = heard("A0.0", 0.0, 100.0, back), heard("A0.1", 50.0, 52.0, back)
    told = {"A0.0": early.sent["F0.0"], "A0.1": late.sent["F0.0"]}
    times_s, _ = heard("F0.0", -1000.0, 0.0, told)
    assert len(times_s) == 8  # rows and doutputs, two layers, two micro-batches
    assert times_s[key] == 1102.0  # 52 of A0.1 is 102 of A0.0
