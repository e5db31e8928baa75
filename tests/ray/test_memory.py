"""What Ray does to workers on a node that is low on memory, and what is said of it."""

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
import ray

from disagmoe.actors.messages import Call, FailureKind, WorkerAssignment, WorkerFailure
from disagmoe.actors.raycrew import RayCrew
from disagmoe.cluster.environment import environment
from disagmoe.cluster.local import local_ray
from disagmoe.config.load import load_run_config
from tests.ray.conftest import ROOT
from tests.unit.actors.plans import plan_of

pytestmark = [pytest.mark.ray, pytest.mark.slow]

ALWAYS_LOW = {
    "RAY_memory_usage_threshold": "0.001",
    "RAY_min_memory_free_bytes": "-1",
    "RAY_memory_monitor_refresh_ms": "100",
}


class _Sleeper:
    """A worker that does nothing for as long as it is left alone."""

    def ping(self) -> None:
        time.sleep(60)


Sleeper: Any = ray.remote(_Sleeper)


def test_a_worker_that_ray_ends_for_want_of_memory_is_named_with_the_reason() -> None:
    plan = plan_of(load_run_config(ROOT / "configs" / "tiny.toml", ()))
    assignment = cast(WorkerAssignment, SimpleNamespace(worker="A0.0"))
    with environment(ALWAYS_LOW), local_ray(1, 1):
        crew = RayCrew([assignment], plan, lambda _: Sleeper)
        crew.start(Call("ping"))
        (reply,) = crew.poll(60)
        crew.kill()
    failure = reply.outcome
    assert isinstance(failure, WorkerFailure)
    assert (failure.worker, failure.kind) == ("A0.0", FailureKind.MEMORY)
    assert failure.message.startswith("A0.0 died: Ray has ended its process (")
    assert "due to the node running low on memory" in failure.message
    assert "with a smaller parallel.micro_batch_size" in failure.message
