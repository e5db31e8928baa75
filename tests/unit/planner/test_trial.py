"""A step of which a part is simulated, against the simulation of all of it."""

import pytest

from disagmoe.planner import trial as planner_trial
from disagmoe.planner.trial import planned, trial
from tests.unit.costs.public_models import MODELS
from tests.unit.costs.scenarios import run

MODEL = MODELS["qwen3-30b-a3b"].model_copy(update={"layers": 6})


@pytest.mark.parametrize(
    ("schedule", "in_flight", "workers", "more"),
    [
        ("af_pipe", 6, (4, 4), {}),
        ("af_pipe", 4, (3, 5), {}),
        ("ep_1f1b", 5, (4, 4), {"groups": 2}),
        ("ep_overlap", 6, (8, 8), {}),
        ("af_pipe", 6, (8, 8), {"dedupe": "node"}),
    ],
)
def test_the_whole_step_follows_from_a_part(schedule, in_flight, workers, more, monkeypatch):
    """Within 2 %: the part is simulated with network cards that the list schedule lacks, and what
    these add to a micro-batch is not the same in all waves."""
    attention, experts = workers
    config = run(
        MODEL,
        f"train.global_batch_size={48 * attention}",
        schedule=schedule,
        in_flight=in_flight,
        attention_workers=attention,
        expert_workers=experts,
        micro_batch_size=attention,
        **more,
    )
    monkeypatch.setattr(planner_trial, "OPERATIONS", 8 * 6)
    part = trial(config)
    short = part.simulate(by_group=True)
    assert short.simulated == in_flight * 3 // 2 < config.micro_batches
    known = part.simulate(by_group=True, planned_s=planned(config))
    assert known.makespan_s == short.makespan_s
    monkeypatch.setattr(planner_trial, "OPERATIONS", 10**9)
    long = trial(config).simulate(by_group=True)
    assert long.simulated == config.micro_batches
    assert short.makespan_s == pytest.approx(long.makespan_s, rel=0.02)
    assert short.bound.time == pytest.approx(long.bound.time, rel=1e-9)
    assert short.makespan_s >= short.bound.time * (1 - 1e-9)
