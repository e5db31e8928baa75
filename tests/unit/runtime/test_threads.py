import threading
import time

import pytest

from disagmoe.errors import WorkerError
from disagmoe.runtime.step import WorkerRuntime
from disagmoe.runtime.threads import ThreadedRun
from disagmoe.schedule.layout import Worker
from disagmoe.transport.faults import Drop, Fail
from tests.unit.runtime.tiny import batch_of, threads, tiny

CONFIG = tiny(parallel__attention_workers=2, parallel__expert_workers=2, parallel__groups=2)


def channel_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if ">" in t.name]


def assert_channel_threads_end() -> None:
    deadline = time.monotonic() + 5
    while channel_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert channel_threads() == []


def test_all_workers_act_together_and_answer_by_worker() -> None:
    with threads(CONFIG, [batch_of(CONFIG)]) as run:
        reports = run.each(lambda runtime: runtime.run_step(0))
        assert list(reports) == list(run.workers)
        assert len({report.loss for report in reports.values()}) == 1
        assert channel_threads()  # kept from step to step
    assert_channel_threads_end()


def broken(run: ThreadedRun, worker: str, attribute: str) -> None:
    runtime = run.workers[Worker.parse(worker)]

    def fail(*args: object, **names: object) -> None:
        raise ValueError("planted")

    owner: object = runtime
    *path, name = attribute.split(".")
    for part in path:
        owner = getattr(owner, part)
    setattr(owner, name, fail)


@pytest.mark.parametrize(
    ("worker", "attribute", "instruction"),
    [
        ("A1.0", "_attention._attn_fwd", r"attn_fwd L1 m0"),
        ("F0.1", "_experts._forward", r"experts_fwd L0 m0"),
        ("F1.0", "_experts._backward", r"experts_bwd L1 m0"),
        ("A0.1", "_attention._attn_bwd", r"attn_bwd L0 m0"),
        ("A1.1", "update.reduce", r"reduce_grads"),
        ("F0.0", "_sum_world", r"reduce_world"),
        ("F0.0", "update.apply", r"update"),
    ],
)
def test_a_failure_names_worker_instruction_and_cause_and_ends_all(
    worker: str, attribute: str, instruction: str
) -> None:
    begin = time.monotonic()
    with threads(CONFIG, [batch_of(CONFIG)], timeout_s=60.0) as run:
        broken(run, worker, attribute)
        index = rf"{worker} failed at instruction \d+ '{instruction}': ValueError: planted"
        with pytest.raises(WorkerError, match=index) as caught:
            run.each(lambda runtime: runtime.run_step(0))
        failed = run.workers[Worker.parse(worker)].interpreter
        assert f"instruction {failed.position} '{failed.instruction}'" in str(caught.value)
        assert isinstance(caught.value.__cause__, ValueError)
    assert time.monotonic() - begin < 30  # nobody has waited for the timeout
    assert_channel_threads_end()


def test_peers_of_a_failed_worker_say_whom_they_miss() -> None:
    with threads(CONFIG, [batch_of(CONFIG)]) as run:
        broken(run, "F0.1", "_experts._forward")
        errors: dict[str, str] = {}

        def guarded(runtime: WorkerRuntime) -> None:
            me = str(runtime._context.worker)
            try:
                runtime.run_step(0)
            except WorkerError as error:
                errors[me] = str(error)
                run.hub.fail(me, str(error))

        run.each(guarded)
    assert errors.keys() == {str(worker) for worker in run.workers}
    assert all("F0.1" in text for text in errors.values())
    assert "has died" not in errors["F0.1"]


def test_a_failing_post_is_an_error_of_its_instruction() -> None:
    with threads(CONFIG, [batch_of(CONFIG)]) as run:
        run.hub.inject("A0.0", "A0>F0.act", 0, Fail("the cable is cut"))
        text = (
            r"A0\.0 failed at instruction \d+ 'post_send A0>F0\.act L0 m0': TransportError: .*cut"
        )
        with pytest.raises(WorkerError, match=text):
            run.each(lambda runtime: runtime.run_step(0))
    assert_channel_threads_end()


def test_a_lost_message_is_a_timeout_that_says_who_waits_for_what() -> None:
    config = tiny()
    with threads(config, [batch_of(config)], timeout_s=0.5) as run:
        run.hub.inject("F0.0", "F0>A0.grad", 0, Drop())
        with pytest.raises(WorkerError, match=r"(?s)no progress within 0\.5 s.*F0>A0\.grad"):
            run.each(lambda runtime: runtime.run_step(0))
    assert_channel_threads_end()


def test_the_first_failure_is_raised_after_all_have_ended() -> None:
    ended = []
    with threads(CONFIG, []) as run:

        def act(runtime: WorkerRuntime) -> None:
            if str(runtime._context.worker) == "F1.1":
                raise KeyError("first")
            time.sleep(0.05)
            ended.append(runtime)

        with pytest.raises(KeyError, match="first"):
            run.each(act)
        assert len(ended) == len(run.workers) - 1
