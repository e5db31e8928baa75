"""Runs that cannot fit: what is lacking, and whether the advice helps."""

import re

import pytest

from disagmoe.config.load import override
from disagmoe.errors import ConfigError
from disagmoe.planner.room import Room, check_room, room_of_machines
from disagmoe.planner.trial import trial
from disagmoe.schedule.layout import Side
from disagmoe.units import GB
from tests.unit.costs.public_models import MODELS
from tests.unit.costs.scenarios import run

FEW = MODELS["qwen3-30b-a3b"].model_copy(update={"layers": 4})


def few(*sets, model=FEW, batch=32, **parallel):
    sizes = {"attention_workers": 2, "expert_workers": 2, "micro_batch_size": 2, "in_flight": 8}
    return run(model, f"train.global_batch_size={batch}", *sets, **(sizes | parallel))


def refusal(config, room):
    with pytest.raises(ConfigError) as caught:
        check_room(config, room)
    return str(caught.value)


def sides(gigabytes):
    return Room(by_side=dict.fromkeys((Side.ATTENTION, Side.EXPERT), gigabytes * GB))


def test_what_fits_is_let_through():
    config = few()
    check_room(config, room_of_machines(config))
    check_room(config, Room(by_side={}))


@pytest.mark.parametrize("gigabytes", [30, 36])
def test_the_cheapest_change_does_help(gigabytes):
    config, room = few(), sides(gigabytes)
    assert max(one.use.expected for one in trial(config).memory) > gigabytes * GB
    text = refusal(config, room)
    assert text.startswith("the run cannot fit into memory: 1 x (2 attention + 2 expert) workers")
    assert re.search(r"with 8 micro-batches in flight, where F0\.0 needs \d+\.\d GiB of ", text)
    assert "GiB of weights, gradients and optimizer, " in text
    advice = re.search(r"the cheapest change that fits is (parallel\.\w+ = \S+), with which", text)
    assert advice is not None, text
    check_room(override(config, [advice[1].replace(" ", "")]), room)


def test_more_workers_are_named_where_nothing_else_helps():
    config = few(model=MODELS["qwen3-30b-a3b"])
    text = refusal(config, room_of_machines(config))
    advice = re.search(
        r"on 4 workers nothing helps; the cheapest change that fits is (parallel\.\w+ = \d+), "
        r"which takes (\d+) workers$",
        text,
    )
    assert advice is not None, text
    bigger = override(config, [advice[1].replace(" ", "")])
    assert bigger.parallel.workers == int(advice[2])
    check_room(bigger, room_of_machines(bigger))


def test_what_never_fits_is_told_so():
    text = refusal(few(), sides(1))
    assert text.endswith("use shorter sequences, or a smaller model")


def test_workers_of_one_machine_share_it():
    config = few()
    uses = [one.use for one in trial(config).memory]
    whole = 2 * sum(use.expected for use in uses)
    check_room(config, Room(by_side={}, together=1.001 * whole))
    text = refusal(config, Room(by_side={}, together=0.999 * whole))
    assert "where all 4 workers, which share a machine, need " in text
