from collections import Counter

import pytest
import torch

from disagmoe.hf.tensors import Fusion, hf_tensors
from disagmoe.model import names
from tests.unit.hf.models import MODELS, TIED, ids

ALL = MODELS | {"tied": TIED}


@pytest.mark.parametrize("fusion", ["per_expert", "fused"])
@pytest.mark.parametrize("name", ALL)
def test_every_element_of_theirs_is_one_of_ours(name: str, fusion: Fusion) -> None:
    model = ALL[name]
    wanted = dict(names.global_shapes(model))
    for layer in range(model.layers):
        wanted |= names.balance_shapes(model, layer)
    theirs = ids(model, fusion)
    seen: Counter[float] = Counter()
    found = {}
    for tensor in hf_tensors(model, fusion):
        assert tuple(theirs[tensor.name].shape) == tensor.shape
        for piece in tensor.pieces:
            assert piece.name not in found
            view = piece.view(theirs[tensor.name])
            found[piece.name] = tuple(view.shape)
            seen.update(view.flatten().tolist())
    assert found == wanted
    assert set(seen.values()) == {1}
    assert len(seen) == sum(tensor.numel() for tensor in theirs.values())


def test_mixtral_calls_gate_up_and_down_w1_w3_and_w2() -> None:
    of = {t.name: t.pieces[0].name for t in hf_tensors(MODELS["mixtral/32"], "per_expert")}
    prefix = "model.layers.1.block_sparse_moe.experts.10"
    assert of[f"{prefix}.w1.weight"] == "layers.1.experts.10.gate.weight"
    assert of[f"{prefix}.w3.weight"] == "layers.1.experts.10.up.weight"
    assert of[f"{prefix}.w2.weight"] == "layers.1.experts.10.down.weight"


def test_gpt_oss_alternates_gate_and_up_in_the_last_dimension() -> None:
    model = MODELS["gpt_oss/32"]
    tensors = {tensor.name: tensor for tensor in hf_tensors(model, "per_expert")}
    tensor = tensors["model.layers.0.mlp.experts.gate_up_proj"]
    whole = torch.arange(12 * 32 * 64).view(12, 32, 64)
    views = {piece.name: piece.view(whole) for piece in tensor.pieces}
    assert torch.equal(views["layers.0.experts.10.gate.weight"], whole[10, :, 0::2].T)
    assert torch.equal(views["layers.0.experts.10.up.weight"], whole[10, :, 1::2].T)
