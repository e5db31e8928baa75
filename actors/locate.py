"""Where this process is: its node, its GPUs, the network devices beside them, the run's files."""

import os
import platform
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import ray
import torch

from disagmoe import __version__
from disagmoe.actors.markers import missing_data
from disagmoe.actors.messages import Located, WorkerAssignment
from disagmoe.actors.nics import GLOO_INTERFACE, NCCL_DEVICES, NCCL_INTERFACE
from disagmoe.actors.sysfs import Gpu, Spot, read_gpus, read_nics
from disagmoe.config.run import RunConfig
from disagmoe.schedule.layout import Side, Worker


def locate(assignment: WorkerAssignment, root: Path = Path("/")) -> Located:
    """Return what the worker of `assignment` finds in this process, the run's files too."""
    missing = _missing(assignment.worker, assignment.config)
    files = assignment.markers.meet(assignment.worker) or missing
    return replace(devices_here(assignment, root), files=files)


def devices_here(assignment: WorkerAssignment, root: Path = Path("/")) -> Located:
    """Return the same without looking for files."""
    context = ray.get_runtime_context()
    node_gpus = read_gpus(root)
    cuda = assignment.config.cluster.device == "cuda"
    return Located(
        worker=assignment.worker,
        node=context.get_node_id(),
        host=assignment.host,
        pid=os.getpid(),
        gpu_ids=tuple(int(number) for number in ray.get_gpu_ids()),
        visible_gpus=_visible_gpus(node_gpus) if cuda else (),
        node_gpus=node_gpus,
        nics=read_nics(root),
        environment=_set_here(os.environ),
        versions=versions(),
    )


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries that decide a worker's results."""
    return {
        "disagmoe": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _missing(worker: str, config: RunConfig) -> str:
    expert = Worker.parse(worker).group.side is Side.EXPERT
    return "" if expert else missing_data(config.data.paths)


def _set_here(environ: Mapping[str, str]) -> dict[str, str]:
    ours = (NCCL_DEVICES, NCCL_INTERFACE, GLOO_INTERFACE)
    return {name: environ[name] for name in ours if environ.get(name)}


def _visible_gpus(node_gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """What torch sees; a GPU that the driver's files do not show has no place on PCIe."""
    known = {gpu.uuid: gpu for gpu in node_gpus}
    seen = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    named = {str(device.uuid).removeprefix("GPU-"): str(device.name) for device in seen}
    return tuple(
        Gpu(uuid=uuid, name=name, spot=known[uuid].spot if uuid in known else Spot())
        for uuid, name in named.items()
    )
