"""The checkpoints of a run as its driver sees them: parts come in, a thread commits, old ones go.

Knows nothing of Ray.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from disagmoe.actors.events import CheckpointSaved, StepResult
from disagmoe.actors.messages import Call, ResumePoint, Saved
from disagmoe.checkpoint.catalogue import (
    check_writable,
    delete_incomplete,
    delete_leftovers,
    retain,
    set_aside,
    step_place,
)
from disagmoe.checkpoint.commit import commit
from disagmoe.checkpoint.manifest import Done
from disagmoe.config.run import RunConfig
from disagmoe.errors import CheckpointError
from disagmoe.model.names import saved_shapes
from disagmoe.runtime.saving import SavedPart
from disagmoe.storage import Location


@dataclass(slots=True)
class _Save:
    """A checkpoint whose parts are being written."""

    step: int
    tokens: int
    first_loss: float | None
    last_loss: float | None
    config: RunConfig
    programs_sha256: str
    since_s: float
    parts: dict[str, SavedPart] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Awaited:
    """The oldest save under way."""

    call: Call
    missing: tuple[str, ...]
    """Workers whose part is not durable yet."""
    left_s: float
    """Time until it is late."""


class Keeper:
    """Commits a checkpoint when the parts of all workers are durable. One for each epoch.

    Commit and deletion happen on a thread, since an object store may take seconds for them.
    """

    def __init__(
        self,
        folder: Location,
        config: RunConfig,
        programs_sha256: str,
        resume: ResumePoint | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._config = config
        self._programs_sha256 = programs_sha256
        self.resume = resume
        """Where the run goes on; None begins anew."""
        self._now = now
        self._tokens = resume.done.tokens if resume else 0
        self._first_loss = resume.done.first_loss if resume else None
        self._begun = resume is not None
        self._workers: tuple[str, ...] = ()
        self._versions: Mapping[str, str] = {}
        self._saves: dict[int, _Save] = {}
        self._commits: list[Future[CheckpointSaved]] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="commit")

    def clear(self) -> None:
        """Delete what interrupted saves have left in the folder, and set aside what lies after the
        step that the run goes on from. Nobody may be saving there.

        Raises CheckpointError where that cannot be done, or the folder cannot be written.
        """
        check_writable(self._folder)
        delete_incomplete(self._folder)
        if self.resume is not None:
            set_aside(self._folder, self.resume.step)

    @property
    def runs_same_programs(self) -> bool:
        """Whether the run goes on with the programs of the checkpoint."""
        return self.resume is not None and self.resume.programs_sha256 == self._programs_sha256

    def started(self, workers: Sequence[str], versions: Mapping[str, str]) -> None:
        """Learn who has to save, and what they run on."""
        self._workers, self._versions = tuple(workers), dict(versions)

    def goes_on_with(self, config: RunConfig, programs_sha256: str) -> None:
        """Learn what the steps from now on run."""
        self._config, self._programs_sha256 = config, programs_sha256

    def step_done(self, result: StepResult) -> Call | None:
        """Count a step; where its state is being saved, return the call that says when a worker's
        part is durable."""
        self._tokens += result.tokens
        loss = result.loss if math.isfinite(result.loss) else None
        if not self._begun:
            self._begun = True
            self._first_loss = loss
        if not result.saving:
            return None
        done = result.step + 1
        self._saves[done] = _Save(
            done,
            self._tokens,
            self._first_loss,
            loss,
            self._config,
            self._programs_sha256,
            self._now(),
        )
        return Call("saved", done)

    def add(self, step: int, answer: Saved) -> None:
        """Take in that a worker's part of the checkpoint of `step` steps is durable."""
        save = self._saves[step]
        save.parts[answer.worker] = answer.saved
        if len(save.parts) == len(self._workers):
            del self._saves[step]
            self._commits.append(self._thread.submit(self._commit, save))

    def awaited(self) -> Awaited | None:
        """The oldest save some of whose parts are not durable, None where there is none."""
        for save in self._saves.values():
            missing = tuple(name for name in self._workers if name not in save.parts)
            left_s = save.since_s + self._config.checkpoint.timeout_s - self._now()
            return Awaited(Call("saved", save.step), missing, left_s)
        return None

    def complete(self) -> Iterator[CheckpointSaved]:
        """Yield the checkpoints that have become complete since the last call.

        Raises CheckpointError where one could not be committed.
        """
        while self._commits and self._commits[0].done():
            yield self._commits.pop(0).result()

    def finish(self) -> Iterator[CheckpointSaved]:
        """Commit what can be committed, yield it, and end the thread.

        Raises CheckpointError where one could not be committed, or not in time.
        """
        self._thread.shutdown(wait=False)
        while self._commits:
            try:
                yield self._commits.pop(0).result(self._config.checkpoint.timeout_s)
            except TimeoutError:
                raise CheckpointError(
                    f"{self._folder}: a checkpoint could not be committed within "
                    f"checkpoint.timeout_s = {self._config.checkpoint.timeout_s:g} s"
                ) from None

    def _commit(self, save: _Save) -> CheckpointSaved:
        parts = [save.parts[worker] for worker in self._workers]
        place = step_place(self._folder, save.step)
        (data,) = [part.data for part in parts if part.data is not None]
        manifest = commit(
            place,
            [part.part for part in parts],
            shapes=saved_shapes(save.config.model),
            done=Done(
                step=save.step,
                updates=parts[0].updates,
                tokens=save.tokens,
                first_loss=save.first_loss,
                last_loss=save.last_loss,
            ),
            data=data.model_dump(),
            config=save.config,
            programs_sha256=save.programs_sha256,
            versions=dict(self._versions),
        )
        problem, deleted = "", []
        try:
            delete_leftovers(self._folder, manifest)
            deleted = retain(self._folder, save.config.checkpoint.keep_last)
        except CheckpointError as error:  # the new one is good all the same
            problem = str(error)
        return CheckpointSaved(
            step=save.step,
            place=str(place),
            size_bytes=manifest.size_bytes,
            elapsed_s=self._now() - save.since_s,
            deleted=tuple(deleted),
            problem=problem,
        )
