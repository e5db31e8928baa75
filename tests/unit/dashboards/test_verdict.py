"""What the check says of a Prometheus that answers this or that."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from disagmoe.dashboards.prometheus import Prometheus, PrometheusError, Series, has_numbers
from disagmoe.dashboards.verdict import compare, compare_result, compare_trace, filled, judge
from disagmoe.runtime.clock import Span
from disagmoe.runtime.trace import WorkerTrace
from disagmoe.schedule.accounting import Kind

ONE = Series({}, (0.0,), (1.0,))
NAN = Series({}, (0.0,), (float("nan"),))


class Fake:
    """Answers by the first key that an expression contains."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self._answers = answers

    def at(self, expr: str, time_s: float) -> list[Series]:
        for part, answer in self._answers.items():
            if part in expr:
                if isinstance(answer, Exception):
                    raise answer
                return answer if isinstance(answer, list) else [Series({}, (0.0,), (answer,))]
        return [ONE]


def server(answers: dict[str, Any]) -> Prometheus:
    return cast(Prometheus, Fake(answers))


def test_all_is_well() -> None:
    verdict = judge(server({}), "r", "30s", 0.0)
    assert verdict.expressions > 70
    assert (verdict.empty, verdict.errors) == ((), ())


@pytest.mark.parametrize("nothing", [[], [NAN]])
def test_what_is_empty_or_no_number_is_named(nothing: Sequence[Series]) -> None:
    verdict = judge(server({"disagmoe_eval_loss": nothing}), "r.1", "30s", 0.0)
    assert verdict.empty == ('disagmoe-overview, Loss: disagmoe_eval_loss{run=~"r\\\\.1"}',)


def test_an_alert_that_does_not_fire_is_not_empty() -> None:
    quiet: dict[str, Any] = {"!= bool": 0.0, "!=": []}
    assert judge(server(quiet), "r", "30s", 0.0).empty == ()


def test_what_is_refused_is_named() -> None:
    verdict = judge(server({"disagmoe_z_loss": PrometheusError("parse error")}), "r", "1m", 0.0)
    assert verdict.errors == ("disagmoe-overview, z-loss: parse error",)


def test_variables_are_filled_in() -> None:
    assert filled('rate(x{run=~"$run"}[$window])', "a-b", "9s") == ('rate(x{run=~"a\\\\-b"}[9s])')


def test_numbers() -> None:
    assert has_numbers([ONE])
    assert not has_numbers([])
    assert not has_numbers([ONE, NAN])


STEP: dict[str, Any] = {
    "tokens": 10,
    "step_s": 2.0,
    "skipped": "",
    "loss": 5.0,
    "grad_norm": 1.0,
    "lr": 0.1,
    "balance": 1.0,
    "z": 2.0,
    "expert_load": [1.5, 1.0],
    "expert_variation": [0.5, 0.25],
    "dead_experts": [1, 2],
    "seconds": {"A0.0": dict.fromkeys(Kind, 0.5)},
    "peak_memory_bytes": {"A0.0": 100},
}
TRUE: dict[str, Any] = {
    "disagmoe_wall_seconds_total": 3.5,
    "disagmoe_seconds_total": 0.5,
    "disagmoe_worker_steps_total": 1.0,
    "disagmoe_memory_peak_bytes": 100.0,
    "disagmoe_skipped_steps_total": 0.0,
    "disagmoe_steps_total": 1.0,
    "disagmoe_tokens_total": 10.0,
    "disagmoe_step_seconds_total": 2.0,
    "disagmoe_loss": 5.0,
    "disagmoe_learning_rate": 0.1,
    "disagmoe_z_loss": 2.0,
    "max(disagmoe_expert_load_max": 1.5,
    "max(disagmoe_expert_load_variation": 0.5,
    "sum(disagmoe_dead": 3.0,
}


def test_values_that_are_those_of_the_run() -> None:
    assert compare(server(TRUE), [STEP, STEP], 0.0) == []


def test_values_that_are_not() -> None:
    wrong = server(TRUE | {"disagmoe_loss": 4.0, "disagmoe_wall_seconds_total": 3.6})
    assert compare(wrong, [STEP], 0.0) == [
        "disagmoe_loss is 4, the run says 5",
        "A0.0: kinds of time add up to 3.500 s of 3.600 s",
    ]
    with pytest.raises(PrometheusError, match="disagmoe_tokens_total has 2 values, expected one"):
        compare(server({"tokens_total": [ONE, ONE]} | TRUE), [STEP], 0.0)


def test_the_loss_on_held_out_data() -> None:
    with_eval = STEP | {"eval_loss": 6.0}
    found = compare(server(TRUE | {"disagmoe_eval_loss": 6.5}), [with_eval], 0.0)
    assert found == ["disagmoe_eval_loss is 6.5, the run says 6"]
    assert compare(server(TRUE | {"disagmoe_eval_loss": 6.0}), [with_eval], 0.0) == []


RESULT: dict[str, Any] = {
    "steps": 3,
    "skipped_steps": 0,
    "tokens": 30,
    "first_loss": 5.0,
    "last_loss": 4.0,
    "tokens_per_s": 5.0,
    "mfu": 0.05,
    "peak_memory_bytes": {"A0.0": 120},
    "shares": {
        "A0": {"utilisation": 3 / 7, "exposed_communication": 2 / 7, "bubble": 2 / 7},
    },
}
STEPS = [STEP, STEP | {"peak_memory_bytes": {"A0.0": 120}}, STEP | {"loss": 4.0}]


def test_the_result_against_the_steps() -> None:
    assert compare_result(server({"model_flops": 0.01}), STEPS, RESULT, 0.0) == []
    wrong = RESULT | {
        "tokens": 31,
        "peak_memory_bytes": {"A0.0": 100},
        "shares": {
            "A0": {"utilisation": 0.5, "exposed_communication": 2 / 7, "bubble": 2 / 7},
        },
    }
    assert compare_result(server({"model_flops": 0.02}), STEPS, wrong, 0.0) == [
        "tokens of result.json is 31, the run says 30",
        "mfu of result.json is 0.05, the run says 0.1",
        "peak memory of A0.0 in result.json is 100, the run says 120",
        "utilisation of A0 in result.json is 0.5, the run says 0.428571",
    ]


def scrapes(*values: float) -> list[Series]:
    return [Series({}, tuple(map(float, range(len(values)))), values)]


def test_shares_against_the_trace() -> None:
    spans = (
        Span(Kind.COMPUTE, "", 0.0, 6.0),
        Span(Kind.RECV_WAIT, "", 6.0, 9.0),
        Span(Kind.IDLE, "", 9.0, 10.0),
    )
    traces = {"A0.0": [WorkerTrace(step, spans, ()) for step in (3, 4, 5)]}
    answers: dict[str, Any] = {
        "compute|data": 0.62,
        "recv_wait|send": 0.29,
        "checkpoint|idle": 0.09,
        'worker_steps_total{instance="A0.0"}[10s]': scrapes(3.0, 4.0, 6.0),
    }
    assert compare_trace(server(answers), traces, 10, 100.0) == []
    assert compare_trace(server(answers | {"compute|data": 0.64}), traces, 10, 100.0) == [
        "A0.0: utilisation is 64.0%, the trace says 60.0%"
    ]
    late = answers | {'worker_steps_total{instance="A0.0"}[10s]': scrapes(3.0, 9.0)}
    assert compare_trace(server(late), traces, 10, 100.0) == [
        "A0.0: 3 of the steps range(3, 9) are traced"
    ]
