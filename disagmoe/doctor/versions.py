"""Versions of the libraries that a run needs, against the oldest that do."""

import re
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import disagmoe
from disagmoe.doctor.finding import Finding

OLDEST = {
    "torch": "2.9",
    "ray": "2.49",
    "pyarrow": "18",
    "prometheus-client": "0.21",
    "numpy": "1.26",
    "pydantic": "2.10",
    "typer": "0.15",
    "rich": "13",
    "safetensors": "0.4.5",
    "tokenizers": "0.21",
    "matplotlib": "3.9",
}
"""As in pyproject.toml, which is not there where the package was merely copied."""

_FIRST = ("torch", "ray")  # those that decide most


def version_findings(version_of: Callable[[str], str] = metadata.version) -> Iterator[Finding]:
    """Yield one finding for this package, one for torch and Ray each, one for the others, and a
    problem for each that is missing or too old. `version_of` raises PackageNotFoundError."""
    where = Path(disagmoe.__file__).parent
    python = ".".join(map(str, sys.version_info[:3]))
    yield Finding(
        subject="disagmoe",
        level="ok",
        found=f"{disagmoe.__version__} in {where}, on Python {python}",
    )
    fine = []
    for name, oldest in OLDEST.items():
        try:
            found = version_of(name)
        except metadata.PackageNotFoundError:
            yield _wrong(name, "is not installed", oldest)
            continue
        if _numbers(found) < _numbers(oldest):
            yield _wrong(name, f"{found} is too old", oldest)
        elif name in _FIRST:
            yield Finding(subject=name, level="ok", found=found)
        else:
            fine.append(f"{name} {found}")
    yield Finding(subject="other packages", level="ok", found=", ".join(fine) or "none")


def _wrong(name: str, found: str, oldest: str) -> Finding:
    extra = "[default]" if name == "ray" else ""
    advice = f"pip install '{name}{extra}>={oldest}', the same version on all nodes"
    return Finding(subject=name, level="problem", found=found, advice=advice)


def _numbers(version: str) -> list[int]:
    """`2.13.0+cpu` as [2, 13, 0]."""
    release = re.match(r"\d+(\.\d+)*", version)
    return [int(part) for part in release[0].split(".")] if release else []
