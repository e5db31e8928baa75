"""Going on from a checkpoint: which one, in which run directory, with which config."""

import logging
from dataclasses import dataclass
from pathlib import Path

from disagmoe.actors.messages import ResumePoint
from disagmoe.actors.resume import resume_point
from disagmoe.actors.startup import open_data
from disagmoe.api.preflight import opened
from disagmoe.api.rundir import holds_run
from disagmoe.checkpoint.blocks import REMEDY
from disagmoe.checkpoint.catalogue import SET_ASIDE, complete_steps, names
from disagmoe.checkpoint.changes import changes, check_same_model, frozen, thawed
from disagmoe.checkpoint.check import size_problems
from disagmoe.checkpoint.find import Folder, Found, find, folder_of, last_good, run_folder
from disagmoe.checkpoint.manifest import MANIFEST
from disagmoe.cluster.join import OWN, Target
from disagmoe.config.parallel import FIRST_PROFILED, PROFILED
from disagmoe.config.run import RunConfig
from disagmoe.errors import CheckpointError, ConfigError
from disagmoe.storage import Location

log = logging.getLogger(__name__)

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Resume:
    """Where a run goes on."""

    found: Found | None
    """The checkpoint; None where `auto` has found none, so that the run begins anew."""
    run_dir: Path | None
    """The directory of the run that goes on in it; None where the run gets one of its own."""
    news: tuple[str, ...] = ()
    """Why it is not the last complete checkpoint, where it is not."""


def saved_config(resume: str) -> RunConfig:
    """Return the config of the checkpoint `D[@STEP]`, to go on with it or to change it first.

    What the run had found out about its machine is left open; `Trainer` puts it back where it still
    fits. Raises ConfigError for `auto`, which may find nothing, and else as `find`.
    """
    if resume == AUTO:
        raise ConfigError("--resume auto may find no checkpoint to begin with; give --config too")
    return thawed(find(resume).manifest.run_config())


def find_resume(resume: str, run_dir: Path | None, config: RunConfig) -> Resume:
    """Find what `--resume` means for a run of `config` in `run_dir`, or in one of its own choice.

    `auto` is the last complete checkpoint of `run_dir` that is not damaged, or of
    `checkpoint.folder` where the directory is new or not named. Another one is that of the run
    which is named or which it lies in, and that run goes on, unless `run_dir` is another directory,
    where a branch begins.

    Raises:
        ConfigError, CheckpointError, StorageError: there is no such checkpoint, or it is damaged.
    """
    own = run_dir.resolve() if run_dir is not None else None
    if resume == AUTO:
        return _automatic(own, config)
    found = find(resume)
    theirs = Path(found.folder.run_dir).resolve() if found.folder.run_dir is not None else None
    goes_on = theirs is not None and own in (None, theirs)
    return Resume(found, theirs if goes_on else None)


def _automatic(run_dir: Path | None, config: RunConfig) -> Resume:
    named = config.checkpoint.folder
    if run_dir is not None and holds_run(run_dir):
        return _last_good(folder_of(Location.parse(str(run_dir))), run_dir)
    if not named and run_dir is None:
        raise ConfigError(
            "--resume auto looks for checkpoints in the run directory or in checkpoint.folder; "
            "name one of them"
        )
    folder = run_folder(named, str(run_dir))
    return _last_good(folder_of(folder), None)


def _last_good(folder: Folder, run_dir: Path | None) -> Resume:
    found, damages = last_good(folder)
    news = [f"DAMAGED CHECKPOINT: {damage}" for damage in damages]
    if damages and found is not None:
        news.append(f"goes on from the last one that is whole, {found.place}, instead")
    return Resume(found, run_dir, tuple(news))


def continued(
    config: RunConfig, found: Found, checkpoints: Location, target: Target = OWN
) -> tuple[RunConfig, ResumePoint, list[str]]:
    """Return `config` resolved as a continuation of `found`, where it goes on, and what differs
    from the run that was saved. `checkpoints` is the folder that it will save to, `target` the Ray
    that it will use.

    Raises:
        ConfigError: the config does not fit the checkpoint, its data or this machine.
        CheckpointError: files of the checkpoint are missing or cut.
        DataError: data that is missing, damaged or not what it was.
    """
    place, step = found.place, found.manifest.step
    saved = found.manifest.run_config()
    check_same_model(config, saved, place)
    if step > config.train.steps:
        raise ConfigError(
            f"train.steps = {config.train.steps}, but the checkpoint {place} has {step} steps; "
            f"use {step} or more, or an earlier checkpoint"
        )
    if problems := size_problems(place, found.manifest):
        raise CheckpointError("\n".join([*problems, REMEDY]))
    resolved, source = opened(_as_saved(config, found), target)
    point, news = resume_point(found, source)
    later = [n for n in complete_steps(checkpoints) if n > step]
    if later:
        news.append(
            f"checkpoints after step {step} are set aside: {names(later)} (rename their "
            f"{SET_ASIDE} to {MANIFEST} to have them back)"
        )
    return resolved, point, [*changes(resolved, saved), *news]


def goes_on(
    config: RunConfig, checkpoints: Location, first: ResumePoint | None
) -> tuple[RunConfig, ResumePoint | None]:
    """Return with which config a run whose workers have failed goes on, and from where: the last
    complete checkpoint in `checkpoints`, or `first`, where it began. `config` is resolved.

    Raises CheckpointError, StorageError, DataError as `continued`.
    """
    found, damages = last_good(folder_of(checkpoints))
    for damage in damages:
        log.error("damaged checkpoint: %s", damage)
    if found is None or (first is not None and found.manifest.step < first.step):
        return config, first
    config = _as_saved(config, found)
    point, _ = resume_point(found, open_data(config))
    return config, point


def _as_saved(config: RunConfig, found: Found) -> RunConfig:
    """`config` with what the run that was saved had found out, as far as it fits."""
    config = frozen(config, found.manifest.run_config())
    if config.train.steps - found.manifest.step <= FIRST_PROFILED + PROFILED:
        # too few steps are left to gain from a profile
        off = config.parallel.model_copy(update={"profile": "off"})
        config = config.model_copy(update={"parallel": off})
    return config
