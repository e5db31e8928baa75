"""GPUs of this machine: whether torch sees those that are there, and one NCCL for all."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from disagmoe.actors.sysfs import Gpu
from disagmoe.doctor.finding import Finding

_SYSTEM_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/cuda/lib64")


def gpu_finding(shown: Sequence[Gpu], seen: Sequence[str], cuda: str | None) -> Finding:
    """Compare the GPUs that NVIDIA's driver shows with the names of those that torch sees; `cuda`
    is the version that torch was built for, None for a CPU build."""
    if seen:
        names = ", ".join(f"{seen.count(name)} x {name}" for name in dict.fromkeys(seen))
        return Finding(subject="GPUs", level="ok", found=f"{names}, torch for CUDA {cuda}")
    if not shown:
        found = "none here; workers on this machine compute on CPU and talk over gloo"
        return Finding(subject="GPUs", level="ok", found=found)
    names = ", ".join(dict.fromkeys(gpu.name for gpu in shown))
    return Finding(
        subject="GPUs",
        level="problem",
        found=f"the driver shows {len(shown)} ({names}), but torch sees none",
        advice=(
            "install a CUDA build of torch, see README.md"
            if cuda is None
            else f"torch was built for CUDA {cuda}: compare with `nvidia-smi`, and look whether "
            "CUDA_VISIBLE_DEVICES hides them"
        ),
    )


def nccl_finding(
    packages: Mapping[str, str], files: Sequence[Path], loaded: Sequence[Path]
) -> Finding:
    """Say whether there is one NCCL: among the installed `packages` (versions by name), the library
    `files` that a process may find, and those `loaded` in this one."""
    if len(packages) > 1:
        both = " and ".join(f"{name} {version}" for name, version in packages.items())
        return Finding(
            subject="NCCL",
            level="problem",
            found=f"{both} install the same file, so that the last one wins",
            advice=f"pip uninstall {' '.join(packages)}, then install torch again, which brings "
            "its own",
        )
    if len(loaded) > 1:
        return Finding(
            subject="NCCL",
            level="problem",
            found=f"two in one process: {_list(loaded)}",
            advice="leave one of them, or take the other's folder out of LD_LIBRARY_PATH",
        )
    if len(files) > 1:
        return Finding(
            subject="NCCL",
            level="note",
            found=f"several libraries: {_list(files)}",
            advice="make sure that all processes load the same, which the order of folders in "
            "LD_LIBRARY_PATH decides",
        )
    found = _list(files) or "none, and none is needed without a GPU"
    return Finding(subject="NCCL", level="ok", found=found)


def _list(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths))


def nccl_packages(installed: Iterable[metadata.Distribution]) -> dict[str, str]:
    """Return the installed packages that hold NCCL, and their versions."""
    names = {str(item.metadata["Name"]).lower(): item.version for item in installed}
    return {name: names[name] for name in sorted(names) if re.match(r"nvidia[-_]nccl", name)}


def nccl_files(site: Iterable[str], environ: Mapping[str, str], root: Path) -> list[Path]:
    """Return the NCCL libraries below the `site` folders of Python, on LD_LIBRARY_PATH and where
    systems have them below `root`, each once however many links lead to it."""
    searched = [
        *(Path(folder) / "nvidia/nccl/lib" for folder in site),
        *(Path(folder) for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder),
        *(root / folder.lstrip("/") for folder in _SYSTEM_FOLDERS),
    ]
    found = (path.resolve() for folder in searched for path in _libraries(folder))
    return list(dict.fromkeys(found))


def _libraries(folder: Path) -> Iterator[Path]:
    try:
        yield from sorted(folder.glob("libnccl.so*"))
    except OSError:
        return
