"""Golden files: whole texts, compared whole, rewritten by `pytest tests/golden --regen`."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Return a function that compares a text with the golden file of a name in this folder."""
    regen = request.config.getoption("--regen")

    def compare(name: str, text: str) -> None:
        path = Path(__file__).parent / name
        if regen:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.is_file(), f"{path} is missing; write it with pytest tests/golden --regen"
        assert text == path.read_text(encoding="utf-8")

    return compare
