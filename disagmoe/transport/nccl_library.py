"""The NCCL library as the transport uses it, through cupy. No other file imports cupy.

cupy is a thin call layer here: communicators, groups, sends and receives on raw pointers and stream
handles. Tensors, streams and memory are torch's.
"""

import importlib
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from disagmoe.errors import TransportError

OLDEST_CUPY = (13, 0)
OLDEST_NCCL = (2, 27)
"""2.26 brought NCCL_LAUNCH_ORDER_IMPLICIT, and torch 2.9, the oldest we run on, comes with 2.27."""

# https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api/types.html#ncclresult-t
_STATUS = {
    0: "success",
    1: "a CUDA call failed",
    2: "a call to the system failed",
    3: "internal error",
    4: "invalid argument",
    5: "invalid usage",
    6: "a peer has ended or the network has failed",
    7: "still in progress",
    8: "timeout",
}
_DTYPES = {
    torch.int8: "NCCL_INT8",
    torch.uint8: "NCCL_UINT8",
    torch.int32: "NCCL_INT32",
    torch.int64: "NCCL_INT64",
    torch.float16: "NCCL_FLOAT16",
    torch.bfloat16: "NCCL_BFLOAT16",
    torch.float32: "NCCL_FLOAT32",
    torch.float64: "NCCL_FLOAT64",
}
_ID_BYTES = 128


class Communicator(Protocol):
    """What is used of cupy.cuda.nccl.NcclCommunicator."""

    def send(self, pointer: int, count: int, dtype: int, peer: int, stream: int) -> None: ...
    def recv(self, pointer: int, count: int, dtype: int, peer: int, stream: int) -> None: ...
    def check_async_error(self) -> None: ...
    def abort(self) -> None: ...


class Nccl:
    """A module with the surface of cupy.cuda.nccl, with its differences between versions evened out
    and its errors turned into TransportErrors."""

    def __init__(self, module: Any) -> None:
        self._module = module

    @property
    def version(self) -> tuple[int, int, int]:
        """Version of the NCCL library in this process, from a code such as 22703."""
        code = int(self._module.get_version())
        return code // 10000, code // 100 % 100, code % 100

    def unique_id(self) -> bytes:
        """Return a new id, from which all members make one communicator."""
        made = self.call("make a unique id", self._module.get_unique_id)
        # cupy 13 has a tuple of C's signed characters
        return made if isinstance(made, bytes) else bytes(number & 0xFF for number in made)

    def communicator(self, members: int, unique_id: bytes, rank: int) -> Communicator:
        """Join the communicator of `unique_id`; returns when all its members have."""
        if len(unique_id) != _ID_BYTES:
            raise TransportError(f"an NCCL id has {_ID_BYTES} bytes, this one {len(unique_id)}")
        make = self._module.NcclCommunicator
        try:
            return self.call("join a communicator", make, members, unique_id, rank)  # type: ignore[no-any-return]
        except TypeError:  # cupy 13
            signed = tuple(byte - 256 if byte > 127 else byte for byte in unique_id)
            return self.call("join a communicator", make, members, signed, rank)  # type: ignore[no-any-return]

    def dtype(self, dtype: torch.dtype) -> int:
        """NCCL's code of a type. Raises TransportError for one that NCCL does not carry."""
        name = _DTYPES.get(dtype)
        if name is None:
            known = ", ".join(sorted(str(one).removeprefix("torch.") for one in _DTYPES))
            raise TransportError(f"NCCL carries no {dtype}; it carries {known}")
        return int(getattr(self._module, name))

    def group_start(self) -> None:
        """Begin to collect sends and receives, which then progress together."""
        self._module.groupStart()

    def group_end(self) -> None:
        """Launch what was collected."""
        self._module.groupEnd()

    def call(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return `function(*arguments)`. Raises TransportError, with the meaning of the status, for
        NCCL's errors; cupy itself fails on a status that it does not know."""
        try:
            return function(*arguments)
        except self._module.NcclError as error:
            status = int(error.status)
            meaning = _STATUS.get(status, "unknown to DisagMoE")
        except KeyError as error:
            status = int(error.args[0])
            meaning = _STATUS.get(status, "unknown to DisagMoE and to cupy")
        raise TransportError(f"NCCL cannot {what}: status {status}, {meaning}")


def load_nccl() -> Nccl:
    """Load cupy's NCCL, after torch's, so that both use one library, and check their versions.

    Raises TransportError that says what is missing or too old.
    """
    refuse_environment(os.environ.get("NCCL_COMM_BLOCKING"))
    # the order of launches on the host is then that of the device, for all communicators together
    os.environ.setdefault("NCCL_LAUNCH_ORDER_IMPLICIT", "1")
    try:
        cupy = importlib.import_module("cupy")
        module = importlib.import_module("cupy.cuda.nccl")
    except ImportError as error:
        raise TransportError(
            f"transport nccl needs cupy with NCCL: {error}; install the extra 'gpu' (make "
            "install-gpu), or use transport gloo"
        ) from error
    nccl = Nccl(module)
    built = torch.cuda.nccl.version() if torch.cuda.is_available() else None
    check_versions(str(cupy.__version__), nccl.version, built)
    maps = Path("/proc/self/maps")
    refuse_two(nccl_loaded(maps.read_text(errors="replace")) if maps.exists() else [])
    return nccl


def check_versions(cupy: str, nccl: tuple[int, int, int], built: tuple[int, ...] | None) -> None:
    """Raise TransportError unless these versions serve; `built` is the NCCL that torch was built
    with, which is all that torch tells, and works with the same and newer ones (verl 6621)."""
    numbers = tuple(int(part) for part in cupy.split(".")[:2])
    if numbers < OLDEST_CUPY:
        raise TransportError(
            f"cupy {cupy} is too old; transport nccl needs {_dotted(OLDEST_CUPY)} or newer "
            "(make install-gpu)"
        )
    if nccl[:2] < OLDEST_NCCL:
        raise TransportError(
            f"NCCL {_dotted(nccl)} is too old; transport nccl needs {_dotted(OLDEST_NCCL)} or "
            "newer (make install-gpu)"
        )
    if built is not None and built[:3] > nccl:
        raise TransportError(
            f"NCCL {_dotted(nccl)} is loaded, and torch was built with {_dotted(built)}: packages "
            "for CUDA 12 and 13 have overwritten each other's library; install torch and cupy for "
            "one version of CUDA into a fresh environment (make install-gpu)"
        )


def refuse_two(loaded: Sequence[Path]) -> None:
    """Raise TransportError where cupy and torch have loaded a library each."""
    if len(loaded) > 1:
        raise TransportError(
            f"two NCCL libraries are in this process: {', '.join(map(str, loaded))}; leave one of "
            "them, or take the other's folder out of LD_LIBRARY_PATH"
        )


def nccl_loaded(maps: str) -> list[Path]:
    """Return the NCCL libraries in the text of a process's /proc/self/maps."""
    return [Path(name) for name in dict.fromkeys(re.findall(r"\S*/libnccl\.so\S*", maps))]


def refuse_environment(blocking: str | None) -> None:
    """Raise TransportError for NCCL_COMM_BLOCKING=0, which cupy cannot handle."""
    if blocking == "0":
        raise TransportError(
            "NCCL_COMM_BLOCKING=0 is set, and cupy fails on communicators that do not block; "
            "unset it"
        )


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
