"""Saving one worker's state: copied at once, written on a thread while training goes on."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from disagmoe.checkpoint.catalogue import step_place
from disagmoe.checkpoint.part import Part, Piece, write_part
from disagmoe.config.checkpoint import CheckpointConfig
from disagmoe.data.position import DataPosition
from disagmoe.errors import CheckpointError
from disagmoe.runtime.shards import live_slices
from disagmoe.runtime.update import Update
from disagmoe.storage import Location

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SavedPart:
    """What one worker has written of a checkpoint; all of it is durable."""

    part: Part
    updates: int
    """Steps with an update."""
    data: DataPosition | None
    """Where the data stands, from the worker that speaks for all."""


class Timer:
    """Says when the time between two saves has passed."""

    def __init__(self, interval_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = interval_s
        self._now = now
        self._since_s = now()

    def is_due(self) -> bool:
        """Whether a save is due by time."""
        return 0 < self._interval_s <= self._now() - self._since_s

    def restart(self) -> None:
        """Count from now on."""
        self._since_s = self._now()


class Saver:
    """Owns the thread that writes. `save` is for the thread that trains, `written` for another."""

    def __init__(
        self,
        worker: str,
        update: Update,
        device: torch.device,
        folder: Location,
        config: CheckpointConfig,
    ) -> None:
        self._worker = worker
        self._update = update
        self._device = device
        self._folder = folder
        self._timeout_s = config.timeout_s
        self._timer = Timer(config.interval_s)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="save")
        self._under_way: Future[SavedPart] | None = None
        self._saves: dict[int, Future[SavedPart]] = {}
        self.probe: Callable[[int], None] | None = None
        """Called before the state after so many steps is written; for drills, see Interpreter."""

    def is_due(self) -> bool:
        """Whether a save is due by time."""
        return self._timer.is_due()

    def save(self, step: int, data: DataPosition | None) -> None:
        """Copy the state after `step` steps and begin to write the copy.

        A save under way ends first, so that there is one copy at most. Raises CheckpointError where
        that one has failed or does not end in time.
        """
        if self._under_way is not None:
            self._ended(self._under_way, step)
        pieces = [
            Piece(live.slice, {kind: _copy(tensor) for kind, tensor in live.tensors.items()})
            for live in live_slices(self._update)
        ]
        random = random_states(self._device)
        updates = self._update.optimizer.step_count
        place = step_place(self._folder, step)

        def write() -> SavedPart:
            if self.probe is not None:
                self.probe(step)
            began_s = time.monotonic()
            part = write_part(place, self._worker, pieces, random)
            pieces.clear()  # the future keeps this function, which must not keep the copy
            elapsed_s = time.monotonic() - began_s
            log.info("wrote %s, %d bytes, %.2f s", part.file.name, part.file.size_bytes, elapsed_s)
            return SavedPart(part, updates, data)

        self._under_way = self._saves[step] = self._thread.submit(write)
        self._timer.restart()

    def written(self, step: int) -> SavedPart:
        """Wait until the state after `step` steps is durable; asked once for each save.

        Raises CheckpointError where it cannot be written, or not in time.
        """
        return self._ended(self._saves.pop(step), step)

    def _ended(self, save: Future[SavedPart], asked_at: int) -> SavedPart:
        try:
            return save.result(self._timeout_s)
        except TimeoutError:
            raise CheckpointError(
                f"{self._worker} has not written its part of a checkpoint within "
                f"checkpoint.timeout_s = {self._timeout_s:g} s (asked for that of step {asked_at})"
                f"; the storage of {self._folder} is too slow or hangs"
            ) from None

    def close(self) -> None:
        """Wait for what is being written."""
        self._thread.shutdown()


def random_states(device: torch.device) -> dict[str, torch.Tensor]:
    """States of the random numbers of this process, by type of device."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in the memory of the CPU, which later steps do not touch."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu").copy_(tensor)
