"""Memory that the workers of a run will have, as far as it is known before they are there."""

import os
from collections.abc import Iterator
from pathlib import Path

import torch

from disagmoe.cluster.bundles import sides_of
from disagmoe.cluster.join import Target
from disagmoe.cluster.nodes import Node, read_nodes
from disagmoe.config.hardware import HardwareConfig
from disagmoe.config.run import RunConfig
from disagmoe.costs.hardware import device_preset
from disagmoe.planner.room import Room, check_room
from disagmoe.schedule.layout import Side

_CGROUP = Path("/sys/fs/cgroup")
_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")
"""Of this process's control group, versions 2 and 1, as a container sees it."""


def refuse_without_room(config: RunConfig, target: Target) -> None:
    """Refuse the resolved `config` where it cannot fit into what `target` is known to have.

    Raises:
        ConfigError: with what is lacking, and the cheapest change that helps.
    """
    if config.train.precision == "fp64":  # no costs are known
        return
    # what a run keeps does not depend on section hardware, which may name machines of elsewhere;
    # all that counts of these is what libraries of a GPU take
    here = HardwareConfig(attention_machine="cpu" if config.cluster.device == "cpu" else "h800")
    check_room(config.model_copy(update={"hardware": here}), room_of(config, target))


def room_of(config: RunConfig, target: Target) -> Room:
    """Return the memory of GPUs, of those of a cluster by the kind that its nodes tell; or of this
    machine, which workers without a GPU share. Other nodes' memory is not known."""
    cluster = config.cluster
    if cluster.device == "cuda" and cluster.mode == "cluster" and not target.is_own:
        return Room(by_side=dict(_by_accelerator(config, read_nodes())))
    if cluster.device == "cuda":
        return Room(by_side=_on_these_gpus(config))
    if cluster.mode == "cluster":
        return Room(by_side={})
    return Room(by_side={}, together=machine_bytes())


def machine_bytes(root: Path = _CGROUP) -> float:
    """Memory of this machine, or what its control group may use of it."""
    limits = [float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))]
    for name in _LIMITS:
        file = root / name
        text = file.read_text(encoding="ascii").strip() if file.is_file() else "max"
        if text != "max":
            limits.append(float(text))
    return min(limits)


def _by_accelerator(config: RunConfig, nodes: list[Node]) -> Iterator[tuple[Side, float]]:
    """Memory of a worker by side, where all nodes that may be its own have GPUs that are known."""
    for side, given in sides_of(config).items():
        kinds = [
            [device_preset(kind) for kind in node.accelerators if given.accelerator in ("", kind)]
            for node in nodes
            if node.offers(side)
        ]
        known = [one.memory_bytes for kind in kinds for one in kind if one is not None]
        if kinds and len(known) == len(kinds):
            yield side, max(known)


def _on_these_gpus(config: RunConfig) -> dict[Side, float]:
    """Workers share this machine's GPUs evenly."""
    if not torch.cuda.is_available():
        return {}
    count = torch.cuda.device_count()
    least = min(torch.cuda.get_device_properties(at).total_memory for at in range(count))
    each = least / -(-config.parallel.workers // count)
    return dict.fromkeys(Side, each)
