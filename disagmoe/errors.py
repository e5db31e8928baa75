"""Every error that a user of DisagMoE can meet, as one small tree."""


class DisagMoEError(Exception):
    """Base of all errors raised on purpose; its message is meant for the user."""


class ConfigError(DisagMoEError):
    """A config that cannot run. `problems` lists all that is wrong, not only the first."""

    def __init__(self, problems: list[str] | str, *, source: str | None = None) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        self.source = source
        where = f"{source}: " if source else ""
        if len(self.problems) == 1:
            text = f"{where}{self.problems[0]}"
        else:
            listed = "\n".join(f"  - {problem}" for problem in self.problems)
            text = f"{where}{len(self.problems)} problems\n{listed}"
        super().__init__(text)


class StorageError(DisagMoEError):
    """A path or URI that cannot be opened, read or written."""


class DataError(DisagMoEError):
    """Input data that cannot be read or does not fit the model."""


class ScheduleError(DisagMoEError):
    """A program, or a set of programs, that is not legal."""


class TransportError(DisagMoEError):
    """A transfer that failed, or whose two ends disagree."""


class CheckpointError(DisagMoEError):
    """A checkpoint that is missing, incomplete or does not match the run."""


class CheckpointDamaged(CheckpointError):  # noqa: N818 - says what is the case
    """A checkpoint that was complete, and is no longer what was written."""


class PlacementError(DisagMoEError):
    """Workers that this cluster cannot hold."""


class PlacementInfeasible(PlacementError):  # noqa: N818 - says what is the case, like its siblings
    """Workers that no set of this cluster's nodes can hold, in use or not."""


class PlacementBusy(PlacementError):  # noqa: N818
    """Workers whose nodes are there, but in use."""


class PlacementTimeout(PlacementError):  # noqa: N818
    """Workers whose nodes seem to be free, but were not given in time."""


class WorkerError(DisagMoEError):
    """A worker that failed or fell silent; the run cannot go on."""
