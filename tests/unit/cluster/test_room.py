"""What is known of the memory of places."""

import pytest

from disagmoe.cluster.join import OWN
from disagmoe.cluster.room import machine_bytes, refuse_without_room, room_of
from disagmoe.config.load import override
from disagmoe.config.resolve import resolve
from disagmoe.config.starter import STARTER
from disagmoe.errors import ConfigError


def test_a_container_has_what_its_group_may_use(tmp_path):
    whole = machine_bytes(tmp_path)
    assert whole > 2**28
    (tmp_path / "memory.max").write_text("max\n")
    assert machine_bytes(tmp_path) == whole
    (tmp_path / "memory.max").write_text("1048576\n")
    assert machine_bytes(tmp_path) == 1048576
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("65536\n")
    assert machine_bytes(tmp_path) == 65536


def test_workers_without_a_gpu_share_this_machine():
    config = resolve(override(STARTER, ["cluster.device=cpu"]), cuda=False)
    room = room_of(config, OWN)
    assert (room.by_side, room.together) == ({}, machine_bytes())
    refuse_without_room(config, OWN)


def test_a_model_larger_than_this_machine_is_refused():
    sets = ["cluster.device=cpu", "model.hidden=65536", "model.expert_width=65536"]
    config = resolve(override(STARTER, sets), cuda=False)
    with pytest.raises(ConfigError, match=r"which share a machine, need .* GiB of weights"):
        refuse_without_room(config, OWN)
