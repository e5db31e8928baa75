"""Versions, statuses and ids; with cupy's own library where it is installed."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from disagmoe.errors import TransportError
from disagmoe.transport.nccl_library import (
    Nccl,
    check_versions,
    load_nccl,
    nccl_loaded,
    refuse_environment,
    refuse_two,
)
from disagmoe.transport.streams import CudaStreams

ONE_FILE = Path("/site/nvidia/nccl/lib/libnccl.so.2")


class Old:
    """cupy 13: ids are tuples of signed characters, and unknown statuses are KeyErrors."""

    class NcclError(RuntimeError):
        status = 6

    NCCL_BFLOAT16 = 9

    def __init__(self) -> None:
        self.joined: list[Any] = []

    def get_version(self) -> int:
        return 22703

    def get_unique_id(self) -> tuple[int, ...]:
        return tuple(range(-64, 64))

    def NcclCommunicator(self, members: int, uid: Any, rank: int) -> str:  # noqa: N802
        if not isinstance(uid, tuple):
            raise TypeError("Expected tuple, got bytes")
        self.joined.append(uid)
        return "communicator"


def test_ids_of_cupy_13_are_bytes_between_workers_and_tuples_for_cupy() -> None:
    module = Old()
    nccl = Nccl(module)
    uid = nccl.unique_id()
    assert uid == bytes(number & 0xFF for number in range(-64, 64))
    assert nccl.communicator(2, uid, 0) == "communicator"
    assert module.joined == [tuple(range(-64, 64))]


def test_an_id_has_128_bytes() -> None:
    with pytest.raises(TransportError, match="an NCCL id has 128 bytes, this one 3"):
        Nccl(Old()).communicator(2, b"abc", 0)


def test_version_and_types() -> None:
    nccl = Nccl(Old())
    assert nccl.version == (2, 27, 3)
    assert nccl.dtype(torch.bfloat16) == 9
    with pytest.raises(TransportError, match=r"NCCL carries no torch\.complex64; it carries bfl"):
        nccl.dtype(torch.complex64)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (Old.NcclError(), "status 6, a peer has ended or the network has failed"),
        (KeyError(7), "status 7, still in progress"),
        (KeyError(99), "status 99, unknown to DisagMoE and to cupy"),
    ],
)
def test_statuses_have_a_meaning(error: Exception, says: str) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(TransportError, match=f"NCCL cannot go on: {says}"):
        Nccl(Old()).call("go on", fail)


@pytest.mark.parametrize(
    ("cupy", "nccl", "built", "says"),
    [
        ("12.3.0", (2, 27, 5), None, r"cupy 12\.3\.0 is too old; transport nccl needs 13\.0"),
        ("14.2.0", (2, 26, 2), None, r"NCCL 2\.26\.2 is too old; transport nccl needs 2\.27"),
        (
            "14.2.0",
            (2, 27, 5),
            (2, 28, 9),
            r"NCCL 2\.27\.5 is loaded, and torch was built with 2\.28\.9: packages for CUDA 12",
        ),
    ],
)
def test_versions_that_do_not_serve(
    cupy: str, nccl: tuple[int, int, int], built: tuple[int, ...] | None, says: str
) -> None:
    with pytest.raises(TransportError, match=says):
        check_versions(cupy, nccl, built)


def test_versions_that_serve() -> None:
    check_versions("13.6.0", (2, 27, 3), None)
    check_versions("14.2.0", (2, 32, 3), (2, 32, 3))
    check_versions("14.2.0", (2, 32, 3), (2, 27, 5))  # torch tells what it was built with


def test_a_loaded_library_is_read_from_the_map_of_a_process() -> None:
    maps = (
        f"7f00-7f01 r--p 00000000 08:01 12 {ONE_FILE}\n"
        f"7f01-7f02 r-xp 00001000 08:01 12 {ONE_FILE}\n"
        "7f03-7f04 r--p 00000000 08:01 13 /lib/libc.so.6\n"
    )
    assert nccl_loaded(maps) == [ONE_FILE]


def test_two_libraries_in_a_process_are_refused() -> None:
    refuse_two([ONE_FILE])
    other = Path("/usr/lib/libnccl.so.2.21")
    with pytest.raises(TransportError, match=f"two NCCL libraries are in this process: {ONE_FILE}"):
        refuse_two([ONE_FILE, other])


def test_communicators_must_block() -> None:
    refuse_environment("1")
    with pytest.raises(TransportError, match="NCCL_COMM_BLOCKING=0 is set, and cupy fails"):
        refuse_environment("0")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_streams_need_a_device() -> None:
    with pytest.raises(TransportError, match="NCCL moves tensors between CUDA devices, and torch"):
        CudaStreams(torch.device("cuda"))


@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="cupy is installed")
def test_a_missing_cupy_is_named() -> None:
    with pytest.raises(TransportError, match="transport nccl needs cupy with NCCL: No module"):
        load_nccl()


@pytest.mark.cupy
def test_the_real_library_makes_ids_without_a_device() -> None:
    nccl = load_nccl()
    first, second = nccl.unique_id(), nccl.unique_id()
    assert (len(first), len(second)) == (128, 128)
    assert first != second
    assert nccl.version >= (2, 27, 0)
    assert nccl.dtype(torch.bfloat16) == 9


@pytest.mark.cupy
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_the_real_library_says_why_it_cannot_join() -> None:
    nccl = load_nccl()
    with pytest.raises(TransportError, match="NCCL cannot join a communicator: status 1, a CUDA"):
        nccl.communicator(1, nccl.unique_id(), 0)
