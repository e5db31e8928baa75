"""The file by which others find a run."""

import stat
from pathlib import Path

import pytest

from disagmoe.cluster.contact import CONTACT_FILE, Contact, remove_contact
from disagmoe.errors import ConfigError

CONTACT = Contact(
    address="127.0.0.1:1", namespace="n", driver="d", token="secret", pid=7, host="127.0.0.1"
)


def test_it_is_read_as_it_was_written_and_only_by_its_user(tmp_path: Path) -> None:
    assert Contact.read(tmp_path) is None
    CONTACT.write(tmp_path)
    assert Contact.read(tmp_path) == CONTACT
    assert stat.S_IMODE((tmp_path / CONTACT_FILE).stat().st_mode) == 0o600
    remove_contact(tmp_path)
    assert list(tmp_path.iterdir()) == []
    remove_contact(tmp_path)


def test_one_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / CONTACT_FILE).write_text('{"address": "x"}')
    with pytest.raises(ConfigError, match=r"contact\.json is not of this version"):
        Contact.read(tmp_path)
