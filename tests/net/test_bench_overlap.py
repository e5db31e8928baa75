"""Hosts on this machine for real: rates, quotas, and the whole bench on a model of no size."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from disagmoe.bench.hosts import HostNetwork, host_network, inside

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.net

TINY = """
name = "bench-tiny"
[model]
family = "qwen3_moe"
vocab_size = 257
hidden = 32
layers = 2
heads = 4
kv_heads = 2
head_dim = 8
experts = 4
top_k = 2
expert_width = 16
[parallel]
micro_batch_size = 1
[train]
steps = 1000
global_batch_size = 4
sequence_length = 32
[cluster]
device = "cpu"
threads_per_worker = 1
[data]
paths = ["replaced by the bench"]
"""


def transfer_s(network: HostNetwork, nbytes: int) -> float:
    """Send `nbytes` from the first host to the second; return the seconds until all are there."""
    first, second = network.hosts
    with inside(second):
        listener = socket.create_server((second.address, 0))
    received = []

    def receive() -> None:
        connection, _ = listener.accept()
        with connection:
            while chunk := connection.recv(1 << 16):
                received.append(len(chunk))

    thread = threading.Thread(target=receive)
    thread.start()
    with inside(first):
        began_s = time.perf_counter()
        with socket.create_connection(listener.getsockname()) as connection:
            connection.sendall(bytes(nbytes))
    thread.join(30)
    listener.close()
    assert sum(received) == nbytes
    return time.perf_counter() - began_s


def test_a_link_carries_its_rate_and_counts_its_bytes() -> None:
    with host_network(2) as network:
        network.limit(40)
        before = network.link_bytes()
        slow_s = transfer_s(network, 2_000_000)
        sent, received = (
            late - early for early, late in zip(before, network.link_bytes(), strict=True)
        )
        network.limit(None)
        fast_s = transfer_s(network, 2_000_000)
    assert slow_s > 2_000_000 * 8 / 40e6 * 0.9  # a full bucket goes ahead of the rate
    assert fast_s < slow_s / 2
    assert 2_000_000 < sent.sent < 2_200_000
    assert received.received == pytest.approx(sent.sent, rel=0.01)  # the kernel chats, too


def test_hosts_are_gone_with_the_block_and_this_process_is_back() -> None:
    home = os.readlink("/proc/thread-self/ns/net")
    with host_network(2) as network:
        with inside(network.hosts[0]):
            assert os.readlink("/proc/thread-self/ns/net") != home
        names = {host.namespace for host in network.hosts}
        assert names <= namespaces()
    assert os.readlink("/proc/thread-self/ns/net") == home
    assert not names & namespaces()


def namespaces() -> set[str]:
    listing = subprocess.run(["ip", "-j", "netns"], capture_output=True, text=True, check=True)
    return {entry["name"] for entry in json.loads(listing.stdout or "[]")}


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_bench_compares_all_systems_on_equal_and_unequal_hosts(tmp_path: Path) -> None:
    for name in ("equal", "unequal"):
        (tmp_path / f"{name}.toml").write_text(TINY)
    before = namespaces()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "disagmoe", "bench", "overlap", "--quick", "--rounds", "2"),
            *("--configs", str(tmp_path), "--json"),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    # whether the opponents reach their bounds is luck with steps of milliseconds
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout, done.stderr
    figures = json.loads(done.stdout)
    assert figures["rounds"] == 2
    assert [s["name"] for s in figures["scenarios"]] == ["equal", "unequal"]
    for scenario in figures["scenarios"]:
        for measured in scenario["systems"].values():
            assert len(measured["steps_s"]) == 2
            # what fits into the bucket of a link is no load for it, and these messages do
            assert measured["lower_bound_s"] > 0
            assert measured["link_bytes"] > 10_000
            for shares in measured["shares"]:
                assert sum(shares.values()) == pytest.approx(1, abs=0.2)  # medians of each
    held = {name.split(": ")[1] for name, holds in figures["checks"].items() if holds}
    assert {"same losses", "workers pinned to their host's core"} <= held
    assert set(figures["headline"]) >= {
        *("rate_mbit", "vs_ep", "vs_ep_allowed", "vs_ep_overlap", "ep_exposed_share"),
    }
    assert set(figures["unequal"]) >= {"vs_best_colocated", "allowed"}
    assert namespaces() <= before
