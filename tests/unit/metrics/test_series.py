"""How many series a run has: bounded by its layout, whatever happens in it."""

from pathlib import Path

from prometheus_client import generate_latest

from disagmoe.config.load import load_run_config
from disagmoe.config.run import RunConfig
from disagmoe.metrics.board import Board
from disagmoe.metrics.run import RunMetrics, StepFigures
from disagmoe.metrics.worker import WorkerMetrics
from disagmoe.runtime.channels import channel_specs
from disagmoe.schedule.accounting import Kind
from disagmoe.schedule.from_config import programs_for
from disagmoe.schedule.layout import Worker

TINY = Path(__file__).resolve().parents[3] / "configs/tiny.toml"
LARGE = [
    "model.layers=60",
    "model.experts=256",
    "parallel.groups=4",
    "parallel.attention_workers=8",
    "parallel.expert_workers=8",
    "train.global_batch_size=8",
    "parallel.micro_batch_size=8",
    "metrics.attention_peak_flops=1e15",
    "metrics.expert_peak_flops=1e15",
    "metrics.link_bytes_per_s=5e10",
]
CAUSES = ("died", "raised", "silent", "late", "transport")
STEPS, RESTARTS = 10_000, 20


def series(board: Board) -> set[str]:
    text = generate_latest(board.registry).decode()
    return {line.rpartition(" ")[0] for line in text.splitlines() if line[0] != "#"}


def figures(step: int, layers: int) -> StepFigures:
    return StepFigures(
        step=step,
        loss=2.0,
        balance=1.0,
        z=1.0,
        grad_norm=1.0,
        lr=1e-3,
        tokens=4096,
        skipped=step % 7 == 0,
        step_s=1.0,
        expert_load=[1.0 + step] * layers,
        expert_variation=[0.5] * layers,
        dead_experts=[step % 256] * layers,
    )


def worker_metrics(config: RunConfig) -> dict[str, tuple[WorkerMetrics, list[str]]]:
    spec = programs_for(config).spec
    specs = channel_specs(spec)
    made = {}
    for worker in spec.layout.workers:
        channels = [one.name for one in specs if str(worker) in one.sources]
        metrics = WorkerMetrics(Worker.parse(str(worker)), channels, lambda: 1.0, lambda: 2.0)
        made[str(worker)] = (metrics, channels)
    return made


def do_step(metrics: WorkerMetrics, channels: list[str]) -> None:
    sent = dict.fromkeys(channels, 1000)
    metrics.step(dict.fromkeys(Kind, 0.1), sent, sent, 2**30)


def test_a_large_run_has_few_series_and_never_more() -> None:
    config = load_run_config(TINY, LARGE)
    run = RunMetrics(config, CAUSES, lambda: 0.0)
    run.placed({str(worker): "cpu" for worker in programs_for(config).spec.layout.workers})
    run.build("1", "3", "2")
    run.step(figures(0, 60))
    run.evaluation(2.0)
    workers = worker_metrics(config)
    assert len(workers) == 64
    at_first = {name: series(metrics.board) for name, (metrics, _) in workers.items()}
    of_run = series(run.board)
    total = len(of_run) + sum(map(len, at_first.values()))
    assert 1000 < total < 20_000

    for restart in range(RESTARTS):
        for step in range(STEPS // RESTARTS):
            run.step(figures(step, 60))
        run.restarting(CAUSES[restart % len(CAUSES)], step=0, steps_lost=9)
        run.resumed(0)
        run.checkpoint_durable(0.0)
        run.evaluation(1.0)
    assert "disagmoe_peak_flops" in "".join(of_run)
    assert series(run.board) == of_run
    name = "F3.7"
    metrics, channels = workers[name]
    for _ in range(STEPS):
        do_step(metrics, channels)
    assert series(metrics.board) == at_first[name]
    for name, (again, channels) in worker_metrics(config).items():  # as a restart makes them
        do_step(again, channels)
        assert series(again.board) == at_first[name]
