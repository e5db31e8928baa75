"""What an endpoint of this machine serves."""

import urllib.request

LOOPBACK = "127.0.0.1"


def scrape(port: int | None) -> dict[str, float]:
    """Values by name and labels."""
    with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/metrics", timeout=10) as answer:
        lines = [x for x in answer.read().decode().splitlines() if x[0] != "#"]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def value(found: dict[str, float], name: str) -> float:
    (one,) = [number for key, number in found.items() if key.partition("{")[0] == name]
    return one
