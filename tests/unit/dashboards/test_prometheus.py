"""A machine without Prometheus."""

from pathlib import Path

import pytest

from disagmoe.dashboards.prometheus import own_prometheus
from disagmoe.errors import ConfigError


def test_what_to_install_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with (
        pytest.raises(ConfigError, match="apt-get install prometheus"),
        own_prometheus(tmp_path, tmp_path / "targets.json", [], every_s=1),
    ):
        pass
