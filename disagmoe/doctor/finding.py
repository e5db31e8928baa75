"""What one check says."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "problem"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the report."""

    subject: str
    level: Level
    found: str
    """What is the case."""
    advice: str = ""
    """What to do; for notes and problems."""
