"""What a worker tells of itself."""

from prometheus_client import generate_latest

from disagmoe.metrics.worker import WorkerMetrics
from disagmoe.schedule.layout import Worker


def values(metrics: WorkerMetrics) -> dict[str, float]:
    """Value by name and own label, those that are not 0."""
    found = {}
    for line in generate_latest(metrics.board.registry).decode().splitlines():
        if line[0] == "#":
            continue
        name, _, value = line.rpartition(" ")
        labels = name.partition("{")[2][:-1].split(",")
        own = [x for x in labels if x.split("=")[0] in ("kind", "channel")]
        if float(value):
            found[" ".join([name.partition("{")[0], *own])] = float(value)
    return found


def test_steps_add_up_and_seconds_are_wall_time() -> None:
    clock = [100.0]
    metrics = WorkerMetrics(Worker.parse("r1.A0.2"), ["world"], lambda: 55.0, lambda: clock[0])
    clock[0] = 103.0
    metrics.step({"compute": 2.0, "idle": 1.0}, {"world": 10}, {"world": 1}, 4096)
    clock[0] = 104.0
    metrics.paused({"idle": 1.0})
    clock[0] = 106.0
    metrics.step({"compute": 1.5, "send": 0.5}, {"world": 5}, {"world": 1}, 8192)
    assert values(metrics) == {
        'disagmoe_seconds_total kind="compute"': 3.5,
        'disagmoe_seconds_total kind="send"': 0.5,
        'disagmoe_seconds_total kind="idle"': 2.0,
        "disagmoe_wall_seconds_total": 6.0,
        "disagmoe_worker_steps_total": 2.0,
        'disagmoe_channel_bytes_total channel="world"': 15.0,
        'disagmoe_channel_messages_total channel="world"': 2.0,
        "disagmoe_memory_peak_bytes": 8192.0,
        "disagmoe_last_progress_timestamp_seconds": 55.0,
    }
