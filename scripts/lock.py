"""Write the lock files from what is installed: `make lock`.

`requirements.lock` pins what a run needs, the build backend included; `requirements-dev.lock` pins
what tests and lint need beside it. Each holds the closure of the requirements in pyproject.toml and
no stray package of this environment. Local version tags (`2.13.0+cpu`) and the CUDA libraries that
some builds of torch bring are left out: which build is installed is the machine's business.
"""

import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
HEADER = "# Written by `make lock`; do not edit.\n"
EXTRAS = ("dev", "hf", "dashboards", "tensorboard")
"""Those that tests need."""
CUDA_PREFIXES = ("nvidia-", "cuda-", "triton")


def closure(requirements: Iterable[str]) -> dict[str, str]:
    """Return name and public version of all that `requirements` need, themselves included.

    Raises PackageNotFoundError when one of them is not installed.
    """
    pins: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    todo = [Requirement(text) for text in requirements]
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        distribution = metadata.distribution(name)
        pins[name] = Version(distribution.version).public
        for extra in {"", *requirement.extras}:
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            needs = map(Requirement, distribution.requires or [])
            todo += [need for need in needs if _applies(need, extra)]
    return pins


def _applies(need: Requirement, extra: str) -> bool:
    if need.name.startswith(CUDA_PREFIXES):
        return False
    return need.marker is None or need.marker.evaluate({"extra": extra})


def lock_texts() -> dict[str, str]:
    """Return the text of each lock file by file name."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        pyproject = tomllib.load(file)
    project = pyproject["project"]
    extras = project["optional-dependencies"]
    runtime = closure(project["dependencies"] + pyproject["build-system"]["requires"])
    optional = [need for name in EXTRAS for need in extras[name]]
    both = closure(project["dependencies"] + optional)
    dev = {name: version for name, version in both.items() if name not in runtime}
    return {"requirements.lock": _text(runtime), "requirements-dev.lock": _text(dev)}


def _text(pins: dict[str, str]) -> str:
    return HEADER + "".join(f"{name}=={pins[name]}\n" for name in sorted(pins))


def main() -> None:
    """Write both lock files into the repository root."""
    for name, text in lock_texts().items():
        (ROOT / name).write_text(text, encoding="ascii")


if __name__ == "__main__":
    main()
