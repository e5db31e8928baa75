"""How others find a run under way: a file in its run directory, and a visit to its driver."""

import contextlib
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from disagmoe.actors.standing import Survey
from disagmoe.cluster.environment import environment
from disagmoe.cluster.local import LOOPBACK, loopback_as_node_address
from disagmoe.cluster.printing import printing_to_log
from disagmoe.errors import ConfigError, WorkerError

CONTACT_FILE = "contact.json"
_ANSWER_S = 3.0
"""How long a worker may take to answer."""
_DRIVER_ANSWER_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Contact:
    """Where the driver of a run is."""

    address: str
    """HOST:PORT of its Ray."""
    namespace: str
    driver: str
    """Name of the driver's actor."""
    token: str
    """Of a Ray of the run's own; empty where the user has the one for the cluster."""
    pid: int
    """The script."""
    host: str
    """Its address."""

    def write(self, run_dir: Path) -> None:
        """Write it for the user who runs the run, and nobody else: whoever has the token may do
        anything in that Ray."""
        path, temporary = run_dir / CONTACT_FILE, run_dir / f"{CONTACT_FILE}.partial"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(asdict(self), file)
        temporary.replace(path)

    @classmethod
    def read(cls, run_dir: Path) -> "Contact | None":
        """Read that of the run under way in `run_dir`; None where there is none.

        Raises ConfigError where it cannot be understood.
        """
        path = run_dir / CONTACT_FILE
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError(
                f"cannot read {path} ({error.strerror}); it is for the user who runs the run"
            ) from error
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{path} is not of this version: {error}") from error


def remove_contact(run_dir: Path) -> None:
    """Say that nothing runs any more."""
    with contextlib.suppress(OSError):
        (run_dir / CONTACT_FILE).unlink()


class Visitor:
    """Asks the driver of a run."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    def survey(self, *, stacks: bool) -> Survey:
        """Where all workers are. Raises WorkerError where the driver does not answer."""
        survey: Survey = self._ask(self._driver.survey.remote(stacks, _ANSWER_S))
        return survey

    def request_stop(self) -> None:
        """Ask for an end after the step under way. Raises WorkerError as `survey` does."""
        self._ask(self._driver.request_stop.remote())

    def _ask(self, ref: Any) -> Any:
        try:
            return ray.get(ref, timeout=_DRIVER_ANSWER_S)
        except RayError as error:
            raise WorkerError(
                f"the driver does not answer ({type(error).__name__}); if it is not being started "
                "again just now, look at logs/driver.log in the run directory"
            ) from error


@contextmanager
def visit(contact: Contact) -> Iterator[Visitor]:
    """Join the Ray of `contact` and find the driver there.

    Raises WorkerError where Ray or the driver is not there.
    """
    variables = {"RAY_USAGE_STATS_ENABLED": "0"}
    private = bool(contact.token)
    if private:
        variables |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": contact.token}
    with contextlib.ExitStack() as stack:
        stack.enter_context(environment(variables))
        stack.enter_context(printing_to_log())
        options: dict[str, Any] = {}
        if private:
            stack.enter_context(loopback_as_node_address())
            options["_node_ip_address"] = LOOPBACK
        try:
            ray.init(
                address=contact.address,
                namespace=contact.namespace,
                log_to_driver=False,
                logging_level=logging.CRITICAL,
                **options,
            )
        except (RuntimeError, ConnectionError, ValueError, RayError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise WorkerError(f"its Ray at {contact.address} does not answer: {reason}") from error
        stack.callback(ray.shutdown)
        try:
            driver = ray.get_actor(contact.driver, contact.namespace)
        except ValueError as error:
            raise WorkerError(
                f"no driver {contact.driver} is there; it may be starting, or started again"
            ) from error
        yield Visitor(driver)
