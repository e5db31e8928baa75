"""From traces to what workers go on with."""

from dataclasses import replace
from pathlib import Path

from disagmoe.actors.assignments import assignments, write_programs
from disagmoe.actors.events import ScheduleTuned
from disagmoe.actors.retune import retuned
from disagmoe.config.load import override
from disagmoe.config.resolve import resolve
from disagmoe.config.run import RunConfig
from disagmoe.runtime.clock import Span
from disagmoe.runtime.trace import WorkerTrace
from disagmoe.runtime.tune import tune
from disagmoe.schedule.accounting import Kind
from disagmoe.schedule.from_config import compile_for
from tests.unit.actors.plans import plan_of

ROOT = Path(__file__).resolve().parents[3]


def test_the_programs_are_those_of_the_tuned_config(tmp_path: Path) -> None:
    loaded = RunConfig.load(ROOT / "configs/tiny.toml")
    sets = ["train.steps=10", "train.eval.every=5", "train.global_batch_size=16"]
    config = resolve(override(loaded, sets), cuda=False)
    assert config.parallel.in_flight == 0
    plan = plan_of(config, str(tmp_path / "run"))
    experts = Span(Kind.COMPUTE, "experts_fwd L0 m0", 0.0, 8.0)
    attention = Span(Kind.COMPUTE, "attn_fwd L0 m0", 0.0, 1.0)
    steps = [{"A0.0": WorkerTrace(1, (attention,), ()), "F0.0": WorkerTrace(1, (experts,), ())}]
    event, given = retuned(plan, steps, 99)

    tuned = tune(config, steps)
    train, evaluation = compile_for(tuned.config)
    assert event == ScheduleTuned(
        config=tuned.config,
        seconds={"attn_fwd": 1.0, "experts_fwd": 8.0},
        expert_shares=[],
        planned_s=train.timeline.makespan,
        gap=train.gap,
        programs_sha256=write_programs(tmp_path / "expected", train, evaluation),
    )
    assert given == assignments(replace(plan, config=tuned.config), train, evaluation, 99)
    before = assignments(plan, *compile_for(config), 99)
    assert [item.train.open().spec for item in given] == [item.train.open().spec for item in before]
    assert given[0].train != before[0].train
    for path in (tmp_path / "expected").rglob("*.sched"):
        name = path.relative_to(tmp_path / "expected")
        assert (tmp_path / "run/programs" / name).read_text() == path.read_text()
