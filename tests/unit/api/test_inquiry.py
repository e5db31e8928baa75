"""Asking runs that are not there, have ended, or were killed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from disagmoe.api import inquiry
from disagmoe.api.inquiry import ask_status, ask_stop
from disagmoe.api.tally import Tally
from disagmoe.cluster.contact import Contact
from disagmoe.errors import ConfigError, WorkerError
from tests.unit.cluster.test_contact import CONTACT


def ended(run_dir: Path) -> str:
    result = Tally().result(
        "ok", first_error=None, peak_memory_total_bytes=0, elapsed_s=1.0, path=run_dir
    )
    (run_dir / "result.json").write_text(result.to_json())
    return result.to_json()


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That of a run whose Ray does not answer."""

    @contextmanager
    def visit(contact: Contact) -> Iterator[None]:
        raise WorkerError(f"its Ray at {contact.address} does not answer")
        yield

    monkeypatch.setattr(inquiry, "visit", visit)
    (tmp_path / "config.toml").touch()
    return tmp_path


def test_no_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is not the directory of a run: it has no config\.toml"):
        ask_status(tmp_path, stacks=False)


def test_a_run_that_has_ended_tells_its_result(run_dir: Path) -> None:
    text = ended(run_dir)
    found = ask_status(run_dir, stacks=False)
    assert found == ask_stop(run_dir, 1.0)
    assert found.to_json() == text  # type: ignore[union-attr]


def test_a_run_that_has_not_begun(run_dir: Path) -> None:
    with pytest.raises(WorkerError, match="has not started its workers yet, or was killed before"):
        ask_stop(run_dir, 1.0)


def test_a_killed_run_says_how_it_goes_on(run_dir: Path) -> None:
    CONTACT.write(run_dir)
    with pytest.raises(WorkerError) as caught:
        ask_status(run_dir, stacks=True)
    assert str(caught.value) == (
        f"the run in {run_dir} has no result, and its Ray at 127.0.0.1:1 does not answer\n"
        "its script is process 7 on 127.0.0.1; if that is gone the run was killed, and goes on "
        f"with `disagmoe train --resume {run_dir}`"
    )
