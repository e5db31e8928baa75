"""Who gets which programs, and the same programs as files for people."""

import hashlib
from pathlib import Path

from disagmoe.actors.messages import RunPlan, WorkerAssignment
from disagmoe.actors.packed import Packed
from disagmoe.schedule.compile import Compiled
from disagmoe.schedule.text import write_program


def assignments(
    plan: RunPlan, train: Compiled, evaluation: Compiled | None, store_port: int
) -> list[WorkerAssignment]:
    """Return one assignment per worker, in world-rank order.

    Programs differ by group only, so a worker is told that of its group and no other, which is
    packed once for all of them.
    """
    groups = train.programs.spec.layout.all_groups
    train_of = {group: Packed.of(train.programs.part(group)) for group in groups}
    eval_of = (
        {group: Packed.of(evaluation.programs.part(group)) for group in groups}
        if evaluation is not None
        else {}
    )
    return [
        WorkerAssignment(
            config=plan.config,
            worker=str(worker),
            train=train_of[worker.group],
            evaluation=eval_of.get(worker.group),
            host=plan.places[str(worker)].host,
            store_host=plan.host,
            store_port=store_port,
            epoch=plan.epoch,
            threads=plan.threads_per_worker,
            log_file=str(Path(plan.run_dir) / "logs" / f"{worker}.log"),
            markers=plan.markers,
            checkpoints=plan.checkpoints,
            resume=plan.resume,
        )
        for worker in train.programs.spec.layout.workers
    ]


def write_programs(folder: Path, train: Compiled, evaluation: Compiled | None) -> str:
    """Write `GROUP.sched` for each group into `folder`, those of an evaluation into its `eval`.

    Returns the SHA-256 of the texts of training, one after the other.
    """
    if evaluation is not None:
        _write(folder / "eval", evaluation)
    return hashlib.sha256("".join(_write(folder, train)).encode()).hexdigest()


def _write(folder: Path, compiled: Compiled) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    texts = []
    for program in compiled.programs.programs:
        texts.append(write_program(program, compiled.programs.spec))
        (folder / f"{program.group}.sched").write_text(texts[-1], encoding="utf-8")
    return texts
