import pytest
import torch
import torch.nn.functional as F

from disagmoe.config.model import ModelConfig
from disagmoe.config.train import LossConfig
from disagmoe.model.init import initial_store
from disagmoe.model.losses import IGNORED
from disagmoe.model.names import global_shapes
from disagmoe.model.partition import model_tensors
from disagmoe.model.transformer import (
    MicroBatch,
    StepResult,
    logits,
    reference_step,
    step_totals,
)

CONFIG = ModelConfig(
    family="mixtral",
    vocab_size=17,
    hidden=8,
    layers=2,
    heads=2,
    kv_heads=1,
    head_dim=4,
    experts=5,
    top_k=2,
    expert_width=6,
)


def store(config: ModelConfig = CONFIG) -> dict[str, torch.Tensor]:
    return initial_store(model_tensors(config), seed=1, std=0.3, dtype=torch.float64)


def batch(sequences: int = 6, length: int = 7) -> MicroBatch:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(17, (sequences, length + 1), generator=generator)
    targets = ids[:, 1:].clone()
    targets[0, :5] = IGNORED
    targets[3] = IGNORED
    return MicroBatch(ids[:, :-1], targets)


def cut(whole: MicroBatch, *sizes: int) -> list[MicroBatch]:
    parts = zip(whole.tokens_BS.split(sizes), whole.targets_BS.split(sizes), strict=True)
    return [MicroBatch(*part) for part in parts]


def assert_same_step(ours: StepResult, expected: StepResult) -> None:
    torch.testing.assert_close(ours.loss, expected.loss, rtol=1e-12, atol=0)
    torch.testing.assert_close(ours.balance, expected.balance, rtol=1e-12, atol=0)
    torch.testing.assert_close(ours.z, expected.z, rtol=1e-12, atol=0)
    assert list(ours.grads) == list(expected.grads)
    for name, grad in expected.grads.items():
        torch.testing.assert_close(ours.grads[name], grad, rtol=1e-10, atol=1e-13)


def test_totals_count_the_whole_step() -> None:
    totals = step_totals(cut(batch(), 4, 2))
    assert (totals.valid_targets, totals.tokens) == (6 * 7 - 5 - 7, 42)
    assert (totals.sequences, totals.micro_batches) == (6, 2)


def test_loss_is_the_mean_over_valid_targets() -> None:
    whole = batch()
    step = reference_step(store(), CONFIG, [whole], LossConfig())
    scores = logits(store(), CONFIG, whole.tokens_BS)
    expected = F.cross_entropy(scores.flatten(0, 1), whole.targets_BS.flatten())
    torch.testing.assert_close(step.loss, expected)


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1, 1), (4, 2), (3, 3)])
def test_micro_batches_change_nothing(sizes: tuple[int, ...]) -> None:
    terms = LossConfig(aux_coef=0.3, z_coef=0.1)
    whole = reference_step(store(), CONFIG, [batch()], terms)
    assert_same_step(reference_step(store(), CONFIG, cut(batch(), *sizes), terms), whole)


def test_chunks_and_backend_change_nothing() -> None:
    terms = LossConfig(aux_coef=0.3, z_coef=0.1)
    whole = reference_step(store(), CONFIG, [batch()], terms)
    other = reference_step(store(), CONFIG, [batch()], terms, backend="loop", chunk_tokens=5)
    assert_same_step(other, whole)


def test_reported_loss_is_free_of_the_terms() -> None:
    plain = reference_step(store(), CONFIG, [batch()], LossConfig())
    terms = reference_step(store(), CONFIG, [batch()], LossConfig(aux_coef=1e-2, z_coef=1e-3))
    assert torch.equal(plain.loss, terms.loss)
    assert torch.equal(plain.balance, terms.balance)
    router = "layers.0.router.weight"
    assert not torch.allclose(plain.grads[router], terms.grads[router])


@pytest.mark.parametrize("scope", ["sequence", "micro_batch", "global"])
@pytest.mark.parametrize(
    "name",
    [
        "embed.weight",
        "layers.0.router.weight",
        "layers.0.attn.k.weight",
        "layers.1.experts.0.up.weight",
    ],
)
def test_gradients_match_finite_differences(name: str, scope: str) -> None:
    terms = LossConfig.model_validate({"aux_coef": 0.5, "z_coef": 0.2, "aux_scope": scope})
    parts = cut(batch(), 4, 2)

    def total(values: dict[str, torch.Tensor]) -> float:
        step = reference_step(values, CONFIG, parts, terms)
        return float(step.loss + 0.5 * step.balance + 0.2 * step.z)

    values = store()
    step = reference_step(values, CONFIG, parts, terms)
    (local,) = [x for x in model_tensors(CONFIG) if name in {part.name for part in x.parts}]
    view = local.split(values[local.name])[name]
    direction = torch.randn(
        view.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    )
    ends = []
    for sign in (1, -2):
        view += sign * 1e-6 * direction
        ends.append(total(values))
    slope = (ends[0] - ends[1]) / 2e-6
    assert slope == pytest.approx(float((step.grads[name] * direction).sum()), rel=1e-5)


def test_step_without_valid_targets_has_zero_gradients() -> None:
    tokens = batch().tokens_BS
    step = reference_step(
        store(), CONFIG, [MicroBatch(tokens, torch.full_like(tokens, IGNORED))], LossConfig()
    )
    assert step.loss == 0.0
    for name, grad in step.grads.items():
        assert torch.equal(grad, torch.zeros_like(grad)), name


@pytest.mark.parametrize("tied", [False, True])
def test_gradients_cover_every_parameter_in_order(tied: bool) -> None:
    config = CONFIG.model_copy(update={"tied_embeddings": tied})
    step = reference_step(store(config), config, [batch()], LossConfig())
    shapes = {name: tuple(grad.shape) for name, grad in step.grads.items()}
    assert list(shapes.items()) == list(global_shapes(config).items())


def test_bf16_model_sums_gradients_in_fp32() -> None:
    values = {name: tensor.bfloat16() for name, tensor in store().items()}
    step = reference_step(values, CONFIG, cut(batch(), 3, 3), LossConfig())
    exact = reference_step(store(), CONFIG, [batch()], LossConfig())
    assert {grad.dtype for grad in step.grads.values()} == {torch.float32}
    assert float(step.loss) == pytest.approx(float(exact.loss), rel=1e-2)
    assert not any(routing.gate_TK.requires_grad for layer in step.routing for routing in layer)
