"""Who gets what, and the programs as files."""

import hashlib
import pickle
from pathlib import Path

from disagmoe.actors.assignments import assignments, write_programs
from disagmoe.actors.messages import ResumePoint
from disagmoe.checkpoint.manifest import Done
from disagmoe.config.load import override
from disagmoe.config.resolve import resolve
from disagmoe.config.run import RunConfig
from disagmoe.data.position import Origin
from disagmoe.schedule.from_config import compile_for
from disagmoe.schedule.layout import Worker
from disagmoe.schedule.text import read_programs
from tests.unit.actors.plans import plan_of

ROOT = Path(__file__).resolve().parents[3]


def test_each_worker_gets_the_program_of_its_group_and_its_own_name_and_log() -> None:
    loaded = RunConfig.load(ROOT / "configs/tiny.toml")
    sets = ["parallel.attention_workers=2", "parallel.expert_workers=2", "train.eval.every=1"]
    config = resolve(override(loaded, sets), cuda=False)
    train, evaluation = compile_for(config)
    assert evaluation is not None
    point = ResumePoint(
        place="/c/step-3",
        done=Done(step=3, updates=3, tokens=9, first_loss=5.0),
        origin=Origin(3),
        programs_sha256="00",
    )
    plan = plan_of(config, threads_per_worker=3, epoch=2, checkpoints="/c", resume=point)
    made = assignments(plan, train, evaluation, 99)
    assert [item.worker for item in made] == ["A0.0", "A0.1", "F0.0", "F0.1"]
    assert [item.log_file for item in made] == [f"/run/logs/{item.worker}.log" for item in made]
    assert [item.host for item in made] == [f"10.0.0.{i}" for i in (1, 2, 3, 4)]
    told = {(item.store_host, item.store_port, item.epoch, item.threads) for item in made}
    assert told == {("10.0.0.9", 99, 2, 3)}
    assert {item.markers for item in made} == {plan.markers}
    assert {(item.checkpoints, item.resume) for item in made} == {("/c", point)}
    for item in made:
        group = Worker.parse(item.worker).group
        assert item.train.open() == train.programs.part(group)
        assert item.evaluation is not None
        assert item.evaluation.open() == evaluation.programs.part(group)
    assert made[0].train is made[1].train  # packed once for the group
    whole = len(pickle.dumps((train.programs, evaluation.programs)))
    assert len(pickle.dumps((made[0].train, made[0].evaluation))) < whole / 5


def test_without_evaluation_there_is_no_program_of_it() -> None:
    config = resolve(RunConfig.load(ROOT / "configs/tiny.toml"), cuda=False)
    plan = plan_of(config)
    train, evaluation = compile_for(config)
    assert [item.evaluation for item in assignments(plan, train, evaluation, 99)] == [None, None]


def test_programs_are_written_so_that_they_read_back(tmp_path: Path) -> None:
    loaded = RunConfig.load(ROOT / "configs/tiny.toml")
    config = override(loaded, ["train.eval.every=1", "parallel.groups=2"])
    train, evaluation = compile_for(config)
    assert evaluation is not None
    sha256 = write_programs(tmp_path, train, evaluation)
    names = ["A0.sched", "A1.sched", "F0.sched", "F1.sched"]
    assert sorted(path.name for path in tmp_path.glob("*.sched")) == names
    for folder, compiled in ((tmp_path, train), (tmp_path / "eval", evaluation)):
        assert read_programs([(folder / name).read_text() for name in names]) == compiled.programs
    texts = "".join((tmp_path / name).read_text() for name in names)
    assert sha256 == hashlib.sha256(texts.encode()).hexdigest()
    assert sha256 == write_programs(tmp_path / "again", train, None)
