"""Commands that make hosts, and what is said where they cannot be made."""

import os
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest

from disagmoe.bench import hosts
from disagmoe.bench.hosts import (
    Host,
    HostNetwork,
    abandoned,
    build_commands,
    check_possible,
    limit_command,
)
from disagmoe.errors import PlacementError

HOSTS = [Host(0, "dm-0", "dm-switch"), Host(1, "dm-1", "dm-switch")]


def test_every_host_has_its_own_address_and_link() -> None:
    commands = [" ".join(command) for command in build_commands(HOSTS, "dm-switch")]
    assert commands[0] == "ip netns add dm-switch"
    assert "ip -n dm-0 addr add 10.200.0.1/24 dev host0" in commands
    assert "ip -n dm-1 addr add 10.200.0.2/24 dev host1" in commands
    for index in (0, 1):
        link = f"ip -n dm-switch link add port{index} type veth peer name host{index} netns"
        assert f"{link} dm-{index}" in commands
        plugged = f"ip -n dm-switch link set port{index} mtu 9000 master bridge up"
        assert plugged in commands


def test_a_rate_is_a_token_bucket_in_kbit() -> None:
    assert " ".join(limit_command("dm-0", "host0", 83.21)) == (
        "tc -n dm-0 qdisc replace dev host0 root tbf rate 83210kbit burst 20000 latency 50ms"
    )


def test_no_rate_removes_it() -> None:
    assert " ".join(limit_command("dm-0", "host0", None)) == ("tc -n dm-0 qdisc del dev host0 root")


@pytest.mark.parametrize(
    ("count", "limited"),
    [(2, ["dm-0", "dm-1"]), (3, ["dm-0", "dm-switch", "dm-1", "dm-switch", "dm-2", "dm-switch"])],
)
def test_the_way_in_is_limited_where_several_can_send_to_one(
    monkeypatch: pytest.MonkeyPatch, count: int, limited: list[str]
) -> None:
    run: list[str] = []
    monkeypatch.setattr(hosts, "_run", lambda command, **_: run.append(command[2]))
    network = HostNetwork([Host(index, f"dm-{index}", "dm-switch") for index in range(count)])
    network.limit(100)
    assert run == limited


def test_tcp_of_a_host_is_set_and_a_refusal_says_what_was_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(hosts, "inside", lambda host: nullcontext())
    monkeypatch.setattr(hosts, "_SETTINGS", tmp_path)
    hosts._set_tcp(HOSTS[0])
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == hosts._TCP
    monkeypatch.setattr(hosts, "_SETTINGS", tmp_path / "none")
    text = r"dm-0: cannot set .*/none/tcp_congestion_control to 'reno': No such file"
    with pytest.raises(PlacementError, match=text):
        hosts._set_tcp(HOSTS[0])


def test_hosts_of_a_killed_bench_are_told_from_those_of_living_ones_and_of_others() -> None:
    gone = 2**22 + 1  # above the largest pid_max of Linux
    mine = f"dm{os.getpid()}-0"
    assert abandoned([f"dm{gone}-0", mine, f"dm{gone}-switch", "blue", f"xdm{gone}-0", "dm-1"]) == [
        f"dm{gone}-0",
        f"dm{gone}-switch",
    ]


def test_all_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "tc" else f"/sbin/{name}")
    with pytest.raises(
        PlacementError, match=r"need root and the command tc; run as root .* iproute2"
    ):
        check_possible()


def test_nothing_is_missing_for_root_with_iproute2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: f"/sbin/{name}")
    check_possible()
