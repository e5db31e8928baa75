import pytest
import torch

from disagmoe.config.run import RunConfig
from disagmoe.model import names
from disagmoe.model.partition import LocalTensor
from disagmoe.runtime.context import Context
from disagmoe.runtime.parameters import Parameters, SegmentKind, local_tensors, used_twice
from disagmoe.schedule.from_config import programs_for
from disagmoe.schedule.layout import Worker
from tests.unit.runtime.tiny import context_of, initial_values, tiny


def tensors_of(context: Context) -> dict[SegmentKind, tuple[LocalTensor, ...]]:
    return local_tensors(
        context.config.model, context.layout, context.worker, context.expert_ranges
    )


def held(config: RunConfig, name: str) -> dict[str, list[str]]:
    """Names of tensors by segment."""
    tensors = tensors_of(context_of(config, name))
    return {str(kind): [tensor.name for tensor in members] for kind, members in tensors.items()}


def parameters(config: RunConfig, name: str) -> Parameters:
    context = context_of(config, name)
    return Parameters(
        tensors_of(context),
        used_twice(config.model, context.layout, context.worker),
        seed=config.train.seed,
        std=config.model.init_std,
        dtype=torch.bfloat16 if config.train.precision == "bf16" else torch.float64,
        device=torch.device("cpu"),
    )


LAYOUTS = (
    {},
    {"parallel__attention_workers": 2, "parallel__expert_workers": 3},
    {"parallel__groups": 2, "parallel__residual": "direct"},
    {"parallel__groups": 2, "parallel__expert_workers": 2},
    {"parallel__groups": 2, "parallel__schedule": "ep_overlap"},
    {"parallel__rings": 2},
    {"model__tied_embeddings": True},
)


@pytest.mark.parametrize("sets", LAYOUTS)
def test_all_workers_together_hold_the_network_with_its_initial_values(
    sets: dict[str, object],
) -> None:
    config = tiny(**sets)
    whole = parameters(tiny(model__tied_embeddings=config.model.tied_embeddings), "A0.0")
    expected = dict(whole.global_values())
    one = tiny(model__tied_embeddings=config.model.tied_embeddings)
    expected |= parameters(one, "F0.0").global_values()
    found: dict[str, torch.Tensor] = {}
    for worker in programs_for(config).spec.layout.workers:
        for name, value in parameters(config, str(worker)).global_values().items():
            assert torch.equal(found.setdefault(name, value), value)
    assert found.keys() == expected.keys() == names.global_shapes(config.model).keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_norms_before_the_experts_are_shared_where_the_residual_is_fused() -> None:
    direct = tiny(parallel__groups=2, parallel__residual="direct")
    fused = tiny(parallel__groups=2)
    norm = names.attention_name(1, "moe_norm")
    assert norm in held(direct, "A1.0")["attention"]
    assert held(fused, "A1.0")["shared"] == held(fused, "F1.0")["shared"] == [norm]
    assert norm not in held(fused, "A1.0")["attention"]
    assert held(direct, "F1.0")["shared"] == []


def test_segments_lie_flat_and_views_share_their_memory() -> None:
    own = parameters(tiny(), "A0.0")
    segment = own.segments[SegmentKind.ATTENTION]
    name = segment.tensors[1].name
    own.values[name].detach().fill_(3.0)
    start = segment.sizes[0]
    (bounds,) = segment.slices(start, start + segment.sizes[1]).items()
    assert bounds == (name, (start, start + segment.sizes[1]))
    assert bool((segment.flat_value[start : start + segment.sizes[1]] == 3.0).all())
    assert segment.slices(start - 1, start + 1) == {
        segment.tensors[0].name: (start - 1, start),
        name: (start, start + 1),
    }
    assert segment.slices(start, start) == {}
    assert sum(segment.sizes) == len(segment.flat_value)


def test_sums_are_exact_in_bf16() -> None:
    """Automodel#3540: 64 times 1e-3 on a sum of 1 must not stall."""
    own = parameters(tiny(train__precision="bf16"), "F0.0")
    (name, *_) = own.grads
    own.grads[name].fill_(1.0)
    tiny_grad = torch.full_like(own.values[name], 1e-3)
    assert tiny_grad.dtype is torch.bfloat16
    for _ in range(64):
        own.accumulate([name], [tiny_grad.detach()])
    exact = 1 + 64 * float(torch.tensor(1e-3, dtype=torch.bfloat16))
    assert torch.allclose(own.grads[name], torch.full((), exact), rtol=1e-6, atol=0)


def test_two_uses_are_summed_apart_until_they_are_joined() -> None:
    own = parameters(tiny(model__tied_embeddings=True), "A0.0")
    first, second = own.grads[names.EMBED], own.second_grad(names.EMBED)
    second.add_(2.0)
    own.accumulate([names.EMBED], [torch.ones_like(first)])
    assert bool((first == 1).all())
    own.join_uses()
    assert bool((first == 3).all())
    assert not second.any()
    own.zero_grad()
    assert not any(grad.any() for grad in own.grads.values())


def test_one_use_has_no_second_sum() -> None:
    own = parameters(tiny(), "A0.0")
    assert own.second_grad(names.EMBED) is own.grads[names.EMBED]
    twice = used_twice(
        tiny(model__tied_embeddings=True).model,
        programs_for(tiny(parallel__groups=2)).spec.layout,
        Worker.parse("F0.0"),
    )
    assert twice == frozenset()


def test_a_colocated_worker_uses_its_fused_norms_twice() -> None:
    config = tiny(parallel__groups=2, parallel__schedule="ep_overlap")
    layout = programs_for(config).spec.layout
    assert used_twice(config.model, layout, Worker.parse("C1.0")) == {
        names.attention_name(1, "moe_norm")
    }


def test_values_are_what_one_process_starts_from() -> None:
    config = tiny()
    store = initial_values(config)
    for worker in ("A0.0", "F0.0"):
        for name, value in parameters(config, worker).values.items():
            assert torch.equal(value, store[name])
