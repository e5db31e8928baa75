"""Who gets which programs, and the same programs as files for people."""

from collections.abc import Sequence
from pathlib import Path

from disagmoe.actors.messages import RunPlan, WorkerAssignment
from disagmoe.actors.packed import Packed
from disagmoe.config.run import RunConfig
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
    workers = train.programs.spec.layout.workers
    hosts = [plan.hosts.get(str(worker), plan.host) for worker in workers]
    return [
        WorkerAssignment(
            config=plan.config,
            worker=str(worker),
            train=train_of[worker.group],
            evaluation=eval_of.get(worker.group),
            host=hosts[index],
            store_host=plan.host,
            store_port=store_port,
            epoch=plan.epoch,
            threads=plan.threads_per_worker,
            log_file=str(Path(plan.run_dir) / "logs" / f"{worker}.log"),
            metrics_port=_metrics_port(plan.config, hosts, index),
        )
        for index, worker in enumerate(workers)
    ]


def _metrics_port(config: RunConfig, hosts: Sequence[str], index: int) -> int:
    """The ports of a host's workers follow each other, behind one for the driver."""
    base = config.metrics.port_base
    return base + 1 + hosts[:index].count(hosts[index]) if base else 0


def write_programs(folder: Path, train: Compiled, evaluation: Compiled | None) -> None:
    """Write `GROUP.sched` for each group into `folder`, those of an evaluation into its `eval`."""
    for place, compiled in ((folder, train), (folder / "eval", evaluation)):
        if compiled is None:
            continue
        place.mkdir(parents=True, exist_ok=True)
        for program in compiled.programs.programs:
            text = write_program(program, compiled.programs.spec)
            (place / f"{program.group}.sched").write_text(text, encoding="utf-8")
