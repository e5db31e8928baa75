"""Asking a run from another process: where it stands, and to stop."""

import time
from pathlib import Path

from disagmoe.actors.standing import Survey
from disagmoe.api.result import Result, has_result
from disagmoe.api.rundir import holds_run
from disagmoe.cluster.contact import Contact, visit
from disagmoe.errors import ConfigError, WorkerError

_POLL_S = 0.2


def ask_status(run_dir: Path, *, stacks: bool) -> Survey | Result:
    """Return where the run in `run_dir` stands, or its result if it has ended.

    Raises:
        ConfigError: `run_dir` holds no run.
        WorkerError: the run was killed, or its driver does not answer.
    """
    contact = _contact(run_dir)
    if isinstance(contact, Result):
        return contact
    try:
        with visit(contact) as visitor:
            return visitor.survey(stacks=stacks)
    except WorkerError as error:
        return _ended_or(run_dir, contact, error)


def ask_stop(run_dir: Path, within_s: float) -> Result:
    """Make the step under way the last one, wait for the end, and return the result.

    Raises:
        ConfigError, WorkerError: as `ask_status`, and where it has not ended `within_s`.
    """
    contact = _contact(run_dir)
    if isinstance(contact, Result):
        return contact
    try:
        with visit(contact) as visitor:
            visitor.request_stop()
    except WorkerError as error:
        return _ended_or(run_dir, contact, error)
    end_s = time.monotonic() + within_s
    while not has_result(run_dir):
        if time.monotonic() > end_s:
            raise WorkerError(
                f"the run in {run_dir} has not ended {within_s:g} s after it was asked to; "
                f"`disagmoe status {run_dir}` says where it is"
            )
        time.sleep(_POLL_S)
    return Result.load(run_dir)


def _contact(run_dir: Path) -> Contact | Result:
    if not holds_run(run_dir):
        raise ConfigError(f"{run_dir} is not the directory of a run: it has no config.toml")
    if has_result(run_dir):
        return Result.load(run_dir)
    contact = Contact.read(run_dir)
    if contact is None:
        raise WorkerError(
            f"the run in {run_dir} has not started its workers yet, or was killed before it had"
        )
    return contact


def _ended_or(run_dir: Path, contact: Contact, error: WorkerError) -> Result:
    """The result that has come meanwhile; raises what it means that there is none."""
    if has_result(run_dir):
        return Result.load(run_dir)
    raise WorkerError(
        f"the run in {run_dir} has no result, and {error}\nits script is process {contact.pid} on "
        f"{contact.host}; if that is gone the run was killed, and goes on with `disagmoe train "
        f"--resume {run_dir}`"
    ) from error
