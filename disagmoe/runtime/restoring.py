"""One worker's state out of a checkpoint that any layout may have written."""

import torch

from disagmoe.checkpoint.load import Wanted, load, load_random
from disagmoe.checkpoint.manifest import read_manifest
from disagmoe.checkpoint.slices import Kind
from disagmoe.runtime.shards import live_slices
from disagmoe.runtime.update import Update
from disagmoe.storage import Location

_STATE = (Kind.MASTER, Kind.EXP_AVG, Kind.EXP_AVG_SQ)


def restore(update: Update, place: Location, worker: str, device: torch.device) -> int:
    """Take over the state in the checkpoint `place` and return its number of steps.

    Each worker reads the masters and moments of its own shards straight into their tensors, rounds
    the weights from the masters, and gets those of other shards from its replicas; so all replicas
    call it together, and no byte is read twice. Random numbers go on where those of the worker of
    this name stood, if there was one.

    Raises CheckpointError where the checkpoint is incomplete, damaged or of another model.
    """
    manifest = read_manifest(place)
    load(
        place,
        manifest,
        [
            Wanted(live.slice, kind, live.tensors[kind])
            for live in live_slices(update)
            for kind in _STATE
        ],
    )
    update.optimizer.resume(manifest.done.updates)
    update.gather()
    random = load_random(place, manifest, worker)
    if "cpu" in random:
        torch.set_rng_state(random["cpu"])
    if "cuda" in random and device.type == "cuda":
        torch.cuda.set_rng_state(random["cuda"], device)
    return manifest.step
