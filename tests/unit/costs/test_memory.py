"""What a worker keeps, by part."""

import pytest

from disagmoe.costs.memory import memory_use
from disagmoe.costs.scenario import scenario_of
from disagmoe.schedule.from_config import programs_for
from disagmoe.schedule.layout import Worker
from disagmoe.units import GIB
from tests.unit.costs.public_models import MODELS
from tests.unit.costs.scenarios import run

FEW = MODELS["qwen3-235b-a22b"].model_copy(update={"layers": 4})


def use(worker, *sets, model=FEW, length=4096, **parallel):
    sizes = {"attention_workers": 16, "expert_workers": 16, "micro_batch_size": 16} | parallel
    config = run(model, "train.global_batch_size=128", *sets, length=length, **sizes)
    request = programs_for(config)
    one = Worker.parse(worker)
    part = request.build().programs.part(one.group)
    return memory_use(scenario_of(config, request.spec.layout), one, part)


def test_states_of_qwen3_235b_on_128_h800():
    """18 bytes per parameter of an expert worker and 6 + 12/16 on an attention worker, as
    arXiv:1910.02054 has it: 65 and 14 GB (the worker with embedding or head)."""
    whole = {"model": MODELS["qwen3-235b-a22b"], "groups": 4, "in_flight": 1, "schedule": "serial"}
    experts, attention = (use(worker, **whole) for worker in ("F0.0", "A0.0"))

    def states(found):
        return (found.weights + found.gradients + found.optimizer) / 1e9

    assert states(experts) == pytest.approx(65, rel=0.01)
    assert states(attention) == pytest.approx(24 * 0.0718 * 6.75 + 0.622 * 6.75, rel=0.02)
    assert experts.optimizer / experts.weights == pytest.approx(6)


def test_more_micro_batches_in_flight_keep_more_slots():
    few, many = use("F0.0", in_flight=2), use("F0.0", in_flight=6)
    saved = 4 * 16 * 4096 * 8 / 16 * (2 * 4096 + 3 * 1536) * 2  # of 4 layers
    assert many.slots - few.slots == pytest.approx(4 * saved, rel=0.35)
    assert (few.weights, few.workspace, few.headroom) == (
        many.weights,
        many.workspace,
        many.headroom,
    )


def test_logits_of_the_head():
    """8192 tokens by 151,936 words: 4.64 GiB for each copy in fp32, and there are three. In chunks
    of 220 tokens the head's gradient is what takes most: two copies in fp32 and one in bf16."""
    sizes = {"attention_workers": 1, "micro_batch_size": 2}
    whole = use("A0.0", "train.loss.chunk_tokens=8192", **sizes)
    matrix = 151_936 * 4096 / GIB
    assert (whole.head + whole.workspace) / GIB == pytest.approx(3 * 4.64 + 2 * matrix, rel=0.01)
    chunks = use("A0.0", **sizes)
    assert (chunks.head + chunks.workspace) / GIB == pytest.approx(10 * matrix, rel=0.01)
    assert use("F0.0").head == 0


def test_what_is_computed_again_is_not_kept():
    kept = {worker: use(worker, in_flight=4) for worker in ("A0.0", "F0.0")}
    for recompute, less in (("attention", {"A0.0"}), ("experts", {"F0.0"}), ("all", set(kept))):
        for worker, before in kept.items():
            found = use(worker, in_flight=4, recompute=recompute)
            if worker in less:
                assert found.slots < 0.6 * before.slots
                assert found.workspace > before.workspace
            else:
                assert found == before


def test_shared_experts_may_be_on_either_side():
    v3 = MODELS["deepseek-v3"].model_copy(update={"layers": 5})
    beside = {worker: use(worker, model=v3) for worker in ("A0.0", "F0.0")}
    moved = {worker: use(worker, model=v3, shared_experts="expert") for worker in beside}
    layers, shared = 2, 3 * 7168 * 2048
    assert beside["A0.0"].weights - moved["A0.0"].weights == 2 * layers * shared
    assert moved["F0.0"].weights - beside["F0.0"].weights == 2 * layers * shared
    assert moved["F0.0"].optimizer - beside["F0.0"].optimizer == 12 * layers * shared / 16
    assert moved["A0.0"].slots < beside["A0.0"].slots
    assert moved["F0.0"].slots > beside["F0.0"].slots


def test_dense_layers_keep_activations_until_the_last_backward():
    v3 = MODELS["deepseek-v3"].model_copy(update={"layers": 5})
    more = use("A0.0", model=v3, in_flight=1, schedule="serial").slots
    less = use(
        "A0.0",
        model=v3.model_copy(update={"layers": 2, "dense_layers": 0, "dense_width": 0}),
        in_flight=1,
        schedule="serial",
    ).slots
    inner = 3 * 18432 * 2 * 4096  # gate, up and their product
    assert more - less > 3 * inner


def test_all_tokens_may_come_to_one_worker():
    found = use("F0.0")
    tokens = 16 * 4096
    more = tokens * 8 * 15 / 16  # choices more than usual
    assert found.worst_case > more * (2 * 4096 + 3 * 1536) * 2
    assert use("A0.0").worst_case == 0
    assert use("F0.0", expert_workers=1).worst_case == pytest.approx(0, abs=1e-3)
    assert use("F0.0", "hardware.routing_peak=1").headroom == pytest.approx(0, abs=1e-3)
    assert found.headroom == pytest.approx(2 / 15 * found.worst_case, rel=0.15)
    assert use("F0.0", "hardware.routing_peak=99").headroom == found.worst_case


def test_full_precision_needs_no_copy_and_a_cpu_no_context():
    cpu = use("F0.0", "hardware.attention_machine=cpu", length=16)
    gpu = use("F0.0", length=16)
    assert (cpu.system, gpu.system) == (0, 2e9)
    assert cpu.optimizer == 2 * cpu.weights  # two moments
    assert gpu.optimizer == 6 * gpu.weights
    assert cpu.gradients == gpu.gradients


def test_colocated_workers_have_both():
    both = use("C0.0", schedule="ep_overlap")
    parts = [use(worker) for worker in ("A0.0", "F0.0")]
    assert both.weights == pytest.approx(sum(part.weights for part in parts))
    assert both.total == pytest.approx(
        both.weights
        + both.gradients
        + both.optimizer
        + both.slots
        + both.workspace
        + both.head
        + both.headroom
        + both.system
    )
