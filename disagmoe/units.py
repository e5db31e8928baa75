"""Units: every conversion and every human-readable quantity goes through this file."""

KB, MB, GB = 10**3, 10**6, 10**9
TERA = 10**12
KIB, MIB, GIB = 2**10, 2**20, 2**30
MBIT = MB // 8
"""Bytes; rates of links are in decimal megabits."""


def format_bytes(count: float) -> str:
    """Return `count` bytes in binary units, for example `1.5 GiB`."""
    for limit, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(count) >= limit:
            return f"{count / limit:.1f} {unit}"
    return f"{count:.0f} B"


def format_count(count: float) -> str:
    """Return a count in decimal units, for example `12.3 M`."""
    for limit, unit in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k")):
        if abs(count) >= limit:
            return f"{count / limit:.1f} {unit}"
    return f"{count:.0f}"


def format_seconds(seconds: float) -> str:
    """Return a duration, for example `1 h 02 min`, `3 min 05 s`, `4.2 s` or `12 ms`."""
    if seconds >= 3600:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"
    if seconds >= 60:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.0f} ms"
