"""Every family through the cut: whole steps of many layouts equal one process."""

from typing import Any

import pytest
import torch

from disagmoe.data.batch import Batch
from tests.unit.runtime.tiny import assert_equals_reference, batch_of, one_step, reference, tiny

LATENT: dict[str, Any] = {
    "model__kv_heads": 2,
    "model__kv_lora_rank": 6,
    "model__qk_nope_head_dim": 4,
    "model__qk_rope_head_dim": 2,
    "model__shared_width": 8,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "mixtral": {"model__family": "mixtral"},
    "olmoe": {"model__family": "olmoe", "model__norm_topk_prob": False},
    "qwen2": {"model__family": "qwen2_moe", "model__shared_width": 6},
    "deepseek": {
        "model__family": "deepseek",
        "model__shared_width": 8,
        "model__dense_layers": 1,
        "model__dense_width": 10,
        "model__layers": 3,
    },
    "deepseek-v2": LATENT | {"model__family": "deepseek_v2", "model__norm_topk_prob": False},
    "deepseek-v3": LATENT
    | {
        "model__family": "deepseek_v3",
        "model__q_lora_rank": 5,
        "model__dense_layers": 2,
        "model__dense_width": 10,
        "model__layers": 4,
        "model__experts": 6,
        "model__expert_groups": 3,
        "model__top_groups": 2,
        "model__routed_scaling": 2.5,
    },
    "gpt-oss": {
        "model__family": "gpt_oss",
        "model__window": 3,
        "model__full_attention_every": 2,
        "model__layers": 3,
    },
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "M2 N3": {"parallel__attention_workers": 2, "parallel__expert_workers": 3},
    "p2 M2 N2": {
        "parallel__groups": 2,
        "parallel__attention_workers": 2,
        "parallel__expert_workers": 2,
    },
    "colocated 2": {
        "parallel__schedule": "ep_overlap",
        "parallel__attention_workers": 2,
        "parallel__expert_workers": 2,
    },
    "p2 recompute": {
        "parallel__groups": 2,
        "parallel__expert_workers": 2,
        "parallel__recompute": "all",
    },
    "recompute R2 split": {
        "parallel__recompute": "all",
        "parallel__rings": 2,
        "parallel__split_backward": True,
    },
}
ON_EXPERTS: dict[str, dict[str, Any]] = {
    "N2": {"parallel__expert_workers": 2, "parallel__dedupe": "none"},
    "p2 fused N2": {"parallel__groups": 2, "parallel__expert_workers": 2},
    "p2 recompute": {
        "parallel__groups": 2,
        "parallel__recompute": "all",
    },
    "p2 direct split recompute": {
        "parallel__groups": 2,
        "parallel__residual": "direct",
        "parallel__split_backward": True,
        "parallel__recompute": "experts",
    },
    "colocated p2 R2": {
        "parallel__schedule": "ep_1f1b",
        "parallel__groups": 2,
        "parallel__attention_workers": 2,
        "parallel__expert_workers": 2,
        "parallel__rings": 2,
    },
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_equals_one_process(family: str, layout: str) -> None:
    config = tiny(**FAMILIES[family], **LAYOUTS[layout])
    batch = batch_of(config)
    assert_equals_reference(one_step(config, batch), reference(config, batch))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", ["deepseek-v3", "gpt-oss"])
def test_packed_documents_are_kept_apart_in_every_layout(family: str, layout: str) -> None:
    config = tiny(**FAMILIES[family], **LAYOUTS[layout])
    whole = batch_of(config)
    starts = torch.rand(whole.tokens_BS.shape, generator=torch.Generator().manual_seed(3)) < 0.4
    batch = Batch(whole.tokens_BS, whole.targets_BS, starts)
    expected = reference(config, batch)
    assert_equals_reference(one_step(config, batch), expected)
    assert abs(expected.loss - reference(config, whole).loss) > 1e-4


def test_the_head_may_work_in_chunks_of_any_size() -> None:
    batch = batch_of(tiny())
    for chunk in (1, 3, 7):
        config = tiny(train__loss__chunk_tokens=chunk, parallel__attention_workers=2)
        assert_equals_reference(one_step(config, batch), reference(config, batch))


@pytest.mark.parametrize("layout", ON_EXPERTS)
@pytest.mark.parametrize("family", ["qwen2", "deepseek-v3"])
def test_shared_experts_on_the_other_side_change_nothing(family: str, layout: str) -> None:
    sets = FAMILIES[family] | ON_EXPERTS[layout] | {"parallel__shared_experts": "'expert'"}
    config = tiny(**sets)
    batch = batch_of(config)
    assert_equals_reference(one_step(config, batch), reference(config, batch))
