"""Placement, topology and launching of a run on a Ray cluster."""

if __name__ != "disagmoe.cluster":
    raise ImportError(f"import this package as 'disagmoe.cluster', not {__name__!r}")
