"""Automatic settings."""

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagmoe.config.load import override
from disagmoe.config.parallel import ScheduleName
from disagmoe.config.resolve import depth_in_flight, resolve
from disagmoe.config.rules import problems
from disagmoe.config.starter import STARTER
from disagmoe.errors import ConfigError


def test_values_on_a_cpu() -> None:
    resolved = resolve(STARTER, cuda=False)
    assert (
        resolved.model_dump()
        == override(
            STARTER,
            [
                "parallel.residual=local",
                "parallel.profile=on",
                "train.precision=fp32",
                "cluster.device=cpu",
                "cluster.transport=gloo",
            ],
        ).model_dump()
    )


def test_values_on_a_gpu() -> None:
    resolved = resolve(STARTER, cuda=True)
    assert (resolved.cluster.device, resolved.train.precision) == ("cuda", "bf16")


def test_nccl_is_taken_where_each_worker_has_a_gpu() -> None:
    taken = [
        resolve(STARTER, cuda=cuda, own_gpus=own).cluster.transport
        for cuda, own in ((True, True), (True, False), (True, None), (False, False))
    ]
    assert taken == ["nccl", "gloo", "gloo", "gloo"]


@pytest.mark.parametrize(
    ("sets", "cuda", "own", "why"),
    [
        ([], False, False, "this machine has none that torch can use"),
        (["cluster.device=cpu"], True, True, 'cluster.device = "cpu"'),
        ([], True, False, "there are fewer of them than workers, which NCCL cannot share"),
    ],
)
def test_nccl_is_refused_without_a_gpu_for_each_worker(
    sets: list[str], cuda: bool, own: bool, why: str
) -> None:
    config = override(STARTER, ["cluster.transport=nccl", *sets])
    with pytest.raises(ConfigError) as caught:
        resolve(config, cuda=cuda, own_gpus=own)
    assert caught.value.problems == [
        f'cluster.transport = "nccl" moves tensors between CUDA devices, and {why}; use "auto" or '
        '"gloo"'
    ]


def test_a_resolved_nccl_stays() -> None:
    once = resolve(STARTER, cuda=True, own_gpus=True)
    assert resolve(once, cuda=True) == once


def test_a_cpu_can_be_asked_for_where_there_is_a_gpu() -> None:
    resolved = resolve(override(STARTER, ["cluster.device=cpu"]), cuda=True)
    assert (resolved.cluster.device, resolved.train.precision) == ("cpu", "fp32")


@pytest.mark.parametrize(
    ("sets", "in_flight"),
    [
        ([], 4),
        (["parallel.groups=2"], 4),
        (["train.global_batch_size=64"], 5),
        (["parallel.groups=2", "train.global_batch_size=64"], 9),
        (["parallel.groups=2", "train.global_batch_size=64", "parallel.max_in_flight=7"], 7),
        (["parallel.max_in_flight=9"], 4),
        (["parallel.costs.experts_fwd=4", "train.global_batch_size=64"], 4),
        (["train.global_batch_size=5"], 2),
        (["parallel.schedule=serial"], 1),
        (["parallel.schedule=ep_1f1b"], 1),
        (["parallel.schedule=ep_1f1b", "parallel.groups=2"], 4),
        (["parallel.schedule=ep_overlap"], 3),
        (["parallel.rings=2"], 2),
        (["parallel.in_flight=2"], 2),
    ],
)
def test_in_flight(sets: list[str], in_flight: int) -> None:
    config = resolve(override(STARTER, [*sets, "parallel.profile=off"]), cuda=False)
    assert config.parallel.in_flight == in_flight
    profiled = resolve(override(STARTER, sets), cuda=False)
    assert depth_in_flight(profiled.parallel, profiled.micro_batches) == in_flight


@pytest.mark.parametrize(
    ("sets", "profile", "in_flight"),
    [
        ([], "on", 0),
        (["parallel.in_flight=2"], "on", 2),
        (["train.steps=10"], "on", 0),
        (["train.steps=9"], "off", 4),
        (["train.steps=9", "parallel.profile=on"], "on", 0),
        (["parallel.costs.rows=0.6"], "off", 4),
        (["parallel.schedule=serial"], "off", 1),
        (["parallel.schedule=serial", "parallel.profile=on"], "on", 0),
        (["parallel.profile=off"], "off", 4),
    ],
)
def test_a_profile_of_a_run_that_is_long_enough_fills_in_the_depth_itself(
    sets: list[str], profile: str, in_flight: int
) -> None:
    short = "train.lr_schedule.warmup_steps=0"
    parallel = resolve(override(STARTER, [short, *sets]), cuda=False).parallel
    assert (parallel.profile, parallel.in_flight) == (profile, in_flight)
    assert list(parallel.profiled_steps(4)) == ([5, 6] if profile == "on" else [])


@pytest.mark.parametrize(("groups", "residual"), [(1, "local"), (2, "fused")])
def test_the_residual_travels_with_the_rows_on_a_ring_of_several_groups(
    groups: int, residual: str
) -> None:
    config = override(STARTER, [f"parallel.groups={groups}"])
    assert resolve(config, cuda=False).parallel.residual == residual


@given(
    groups=st.integers(1, 4),
    batch=st.integers(1, 40),
    size=st.integers(1, 40),
    schedule=st.sampled_from(get_args(ScheduleName)),
    cuda=st.booleans(),
)
@settings(max_examples=40)
def test_resolved_configs_are_legal_and_stay(
    groups: int, batch: int, size: int, schedule: str, cuda: bool
) -> None:
    config = override(
        STARTER,
        [
            f"parallel.groups={groups}",
            f"train.global_batch_size={batch}",
            f"parallel.micro_batch_size={min(size, batch)}",
            f"parallel.schedule={schedule}",
        ],
    )
    resolved = resolve(config, cuda=cuda)
    assert problems(resolved) == []
    assert resolve(resolved, cuda=cuda) == resolved
    assert "auto" not in str(resolved.model_dump().values())
    depth = depth_in_flight(resolved.parallel, resolved.micro_batches)
    assert 1 <= depth <= resolved.micro_batches
    assert resolved.parallel.in_flight in (0, depth)


def test_cuda_where_there_is_none() -> None:
    config = override(STARTER, ["cluster.device=cuda"])
    with pytest.raises(
        ConfigError,
        match=r'^cluster.device = "cuda", but this machine has no CUDA device that torch can use; '
        r'use "auto" or "cpu"$',
    ):
        resolve(config, cuda=False)


def test_a_config_built_in_python_meets_the_rules_here() -> None:
    model = STARTER.model.model_copy(update={"kv_heads": 4})
    config = STARTER.model_copy(update={"model": model})
    with pytest.raises(ConfigError, match=r"^model\.kv_heads = 4 does not divide model.heads = 6"):
        resolve(config, cuda=False)


def test_micro_batches_of_a_step() -> None:
    config = override(STARTER, ["train.global_batch_size=10"])
    assert config.micro_batches == 3
    assert override(config, ["parallel.rings=3"]).micro_batches == 1
