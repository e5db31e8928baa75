"""GPUs that torch does not see, and more than one NCCL."""

from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from disagmoe.actors.sysfs import Gpu
from disagmoe.doctor.gpus import (
    gpu_finding,
    nccl_files,
    nccl_finding,
    nccl_packages,
)

TWO = [Gpu(uuid="a", name="NVIDIA H800"), Gpu(uuid="b", name="NVIDIA H800")]
ONE_FILE = Path("/venv/nvidia/nccl/lib/libnccl.so.2")
OTHER_FILE = Path("/usr/lib64/libnccl.so.2.21")


@pytest.mark.parametrize(
    ("shown", "seen", "cuda", "expected"),
    [
        (
            [],
            [],
            None,
            ("ok", "none here; workers on this machine compute on CPU and talk over gloo", ""),
        ),
        (TWO, ["H800", "H800"], "12.8", ("ok", "2 x H800, torch for CUDA 12.8", "")),
        (
            TWO,
            [],
            None,
            (
                "problem",
                "the driver shows 2 (NVIDIA H800), but torch sees none",
                "install a CUDA build of torch, see README.md",
            ),
        ),
        (
            TWO,
            [],
            "13.0",
            (
                "problem",
                "the driver shows 2 (NVIDIA H800), but torch sees none",
                "torch was built for CUDA 13.0: compare with `nvidia-smi`, and look whether "
                "CUDA_VISIBLE_DEVICES hides them",
            ),
        ),
    ],
)
def test_gpus(shown: list[Gpu], seen: list[str], cuda: str | None, expected: Any) -> None:
    finding = gpu_finding(shown, seen, cuda)
    assert (finding.level, finding.found, finding.advice) == expected


@pytest.mark.parametrize(
    ("packages", "files", "loaded", "expected"),
    [
        ({}, [], [], ("ok", "none, and none is needed without a GPU", "")),
        ({"nvidia-nccl-cu12": "2.27.5"}, [ONE_FILE], [ONE_FILE], ("ok", str(ONE_FILE), "")),
        (
            {"nvidia-nccl-cu12": "2.27.5", "nvidia-nccl-cu13": "2.28.9"},
            [ONE_FILE],
            [ONE_FILE],
            (
                "problem",
                "nvidia-nccl-cu12 2.27.5 and nvidia-nccl-cu13 2.28.9 install the same file, so "
                "that the last one wins",
                "pip uninstall nvidia-nccl-cu12 nvidia-nccl-cu13, then install torch again, which "
                "brings its own",
            ),
        ),
        (
            {},
            [ONE_FILE, OTHER_FILE],
            [ONE_FILE, OTHER_FILE],
            (
                "problem",
                f"two in one process: {ONE_FILE}, {OTHER_FILE}",
                "leave one of them, or take the other's folder out of LD_LIBRARY_PATH",
            ),
        ),
        (
            {},
            [ONE_FILE, OTHER_FILE],
            [ONE_FILE],
            (
                "note",
                f"several libraries: {ONE_FILE}, {OTHER_FILE}",
                "make sure that all processes load the same, which the order of folders in "
                "LD_LIBRARY_PATH decides",
            ),
        ),
    ],
)
def test_nccl(
    packages: dict[str, str], files: list[Path], loaded: list[Path], expected: Any
) -> None:
    finding = nccl_finding(packages, files, loaded)
    assert (finding.level, finding.found, finding.advice) == expected


class Installed:
    """Stands for a distribution."""

    def __init__(self, name: str, version: str) -> None:
        self.metadata = Message()
        self.metadata["Name"] = name
        self.version = version


def test_packages_with_nccl_are_found_among_others() -> None:
    installed = [Installed("torch", "2.10"), Installed("NVIDIA_nccl_cu12", "2.27.5")]
    assert nccl_packages(installed) == {"nvidia_nccl_cu12": "2.27.5"}  # type: ignore[arg-type]


def test_files_are_found_once_however_many_links_lead_to_them(tmp_path: Path) -> None:
    wheel = tmp_path / "site/nvidia/nccl/lib"
    system = tmp_path / "usr/lib64"
    for folder in (wheel, system):
        folder.mkdir(parents=True)
    (wheel / "libnccl.so.2").touch()
    (system / "libnccl.so.2.21").touch()
    (system / "libnccl.so").symlink_to("libnccl.so.2.21")
    environ = {"LD_LIBRARY_PATH": f"{system}::{tmp_path / 'nowhere'}"}
    found = nccl_files([str(tmp_path / "site")], environ, tmp_path)
    assert found == [wheel / "libnccl.so.2", system / "libnccl.so.2.21"]
