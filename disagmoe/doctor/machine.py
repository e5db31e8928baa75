"""What Ray and the transports need of this machine: ports, temporary files, shared memory."""

import resource
import shutil
import socket
from pathlib import Path

from disagmoe.doctor.finding import Finding
from disagmoe.units import MIB, format_bytes

_SHARED_BYTES = 80 * MIB  # the object store of a private Ray
_OPEN_FILES = 4096
"""Sockets to all peers of a large run, and Ray's own. Ray's documentation asks for 65536."""


def port_finding(host: str) -> Finding:
    """Try to listen on a port of `host` that the system chooses, and to reach it."""
    try:
        with (
            socket.create_server((host, 0)) as server,
            socket.create_connection(server.getsockname()[:2], timeout=5),
        ):
            port = server.getsockname()[1]
    except OSError as error:
        return Finding(
            subject="ports",
            level="problem",
            found=f"cannot listen on {host} and reach it: {error.strerror or error}",
            advice="workers listen on ports that the system chooses: let the firewall pass those "
            "of /proc/sys/net/ipv4/ip_local_port_range between nodes",
        )
    return Finding(subject="ports", level="ok", found=f"{host} can be reached at port {port}")


def shared_memory_finding(folder: Path = Path("/dev/shm")) -> Finding:
    """Look whether Ray's object store has room; Ray takes slow files instead where it has none."""
    free = shutil.disk_usage(folder).free if folder.is_dir() else 0
    if free >= _SHARED_BYTES:
        return Finding(
            subject="shared memory", level="ok", found=f"{format_bytes(free)} free in {folder}"
        )
    return Finding(
        subject="shared memory",
        level="problem",
        found=f"{format_bytes(free)} free in {folder}, and Ray needs {format_bytes(_SHARED_BYTES)}",
        advice="give a container more (docker run --shm-size=8g; a memory-backed emptyDir at "
        f"{folder} on Kubernetes), or remove what is left there",
    )


def open_files_finding(limit: int | None = None) -> Finding:
    """Compare the limit on open files, that of this process if not given."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if limit is None else limit
    if soft == resource.RLIM_INFINITY or soft >= _OPEN_FILES:
        return Finding(subject="open files", level="ok", found=_limit(soft))
    return Finding(
        subject="open files",
        level="note",
        found=_limit(soft),
        advice="`ulimit -n 65536` before `ray start`; large runs need a socket per peer",
    )


def _limit(soft: int) -> str:
    return "no limit" if soft == resource.RLIM_INFINITY else f"at most {soft} per process"
