"""Plans of runs that never were, and workers where they were planned."""

from dataclasses import replace
from typing import Any

from disagmoe.actors.markers import Markers
from disagmoe.actors.messages import Located, Place, RunPlan
from disagmoe.actors.sysfs import Gpu, Spot
from disagmoe.config.run import RunConfig

VERSIONS = {"disagmoe": "1", "python": "3.12.1", "torch": "2.13.0+cpu"}


def plan_of(config: RunConfig, run_dir: str = "/run", **changes: Any) -> RunPlan:
    """A plan that puts each worker on a node of its own: A0.0 on node 0 at 10.0.0.1, and so on."""
    places = {
        name: Place(node=f"{i}" * 12, host=f"10.0.0.{i + 1}", cpus=4)
        for i, name in enumerate(config.parallel.worker_names)
    }
    plan = RunPlan(
        config=config,
        run_dir=run_dir,
        run_id="test",
        host="10.0.0.9",
        places=places,
        markers=Markers(run_dir, "token"),
        threads_per_worker=1,
    )
    return replace(plan, **changes)


def located_by(plan: RunPlan) -> dict[str, Located]:
    """What workers find that are where `plan` puts them, on nodes without anything special."""
    return {
        name: Located(
            worker=name,
            node=place.node,
            host=place.host,
            pid=100 + i,
            gpu_ids=(),
            visible_gpus=(),
            node_gpus=(),
            nics=(),
            environment={},
            versions=VERSIONS,
            files="",
        )
        for i, (name, place) in enumerate(plan.places.items())
    }


def gpu(uuid: str, *pci: str, name: str = "NVIDIA H800", numa: int = -1) -> Gpu:
    """A GPU at the end of the path `pci`."""
    return Gpu(uuid=uuid, name=name, spot=Spot(pci=pci, numa=numa))
