"""Weights in fp8 and MXFP4: unpacked number by number, and nothing of them is overlooked."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from disagmoe.errors import ConfigError, DataError
from disagmoe.hf.exporting import export_model
from disagmoe.hf.importing import import_model
from disagmoe.hf.quantised import from_fp8, from_mxfp4, packing_of
from tests.unit.hf.models import MODELS, ids, write

BLOCK = (16, 8)
FP8: dict[str, Any] = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [*BLOCK],
}
MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
V3, OSS = MODELS["deepseek_v3/20"], MODELS["gpt_oss/32"]
ONE = "model.layers.1.mlp.experts.10.up_proj.weight"
GATE_UP = "model.layers.0.mlp.experts.gate_up_proj"

Tensors = dict[str, torch.Tensor]


def fp8_files() -> tuple[Tensors, Tensors]:
    """Files as DeepSeek-V3's, and the numbers that they stand for, by the definition."""
    generator = torch.Generator().manual_seed(1)
    files: Tensors = {}
    expected: Tensors = {}
    for name, tensor in ids(V3, "per_expert").items():
        packed = "proj" in name
        values = torch.randn(tensor.shape, generator=generator)
        files[name] = values.to(torch.float8_e4m3fn) if packed else values
        if not packed:
            expected[name] = values
            continue
        rows, columns = values.shape
        grid = (-(-rows // BLOCK[0]), -(-columns // BLOCK[1]))
        scales = torch.rand(grid, generator=generator) + 0.01
        files[f"{name}_scale_inv"] = scales
        numbers = files[name].float()
        for row in range(rows):
            for column in range(columns):
                numbers[row, column] *= scales[row // BLOCK[0], column // BLOCK[1]]
        expected[name] = numbers.bfloat16().float()
    return files, expected


def mxfp4_files() -> tuple[Tensors, Tensors]:
    """The same as GPT-OSS's."""
    generator = torch.Generator().manual_seed(2)
    numbers = [0.0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
    files: Tensors = {}
    expected: Tensors = {}
    for name, tensor in ids(OSS, "per_expert").items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            files[name] = expected[name] = torch.randn(tensor.shape, generator=generator)
            continue
        experts, columns, rows = tensor.shape
        codes = torch.randint(16, (experts, rows, columns), generator=generator)
        powers = torch.randint(120, 131, (experts, rows, columns // 32), generator=generator)
        pairs = codes.view(experts, rows, columns // 32, 16, 2)
        files[f"{name}_blocks"] = (pairs[..., 0] + 16 * pairs[..., 1]).to(torch.uint8)
        files[f"{name}_scales"] = powers.to(torch.uint8)
        values = torch.tensor(numbers)[codes] * 2.0 ** (powers - 127).repeat_interleave(32, -1)
        expected[name] = values.transpose(1, 2).contiguous()
    return files, expected


@pytest.mark.parametrize(
    ("model", "files", "settings", "notice"),
    [
        (V3, fp8_files, FP8, "fp8 with a scale for each 16 x 8"),
        (OSS, mxfp4_files, MXFP4, "mxfp4"),
    ],
)
def test_what_was_packed_comes_in(
    tmp_path: Path,
    model: Any,
    files: Callable[[], tuple[Tensors, Tensors]],
    settings: dict[str, Any],
    notice: str,
) -> None:
    packed, expected = files()
    source = write(tmp_path / "source", model, tensors=packed, quantization_config=settings)
    done = import_model(source, str(tmp_path / "checkpoint"))
    assert done.model == model
    count = sum(name.endswith(("_scale_inv", "_scales")) for name in packed)
    assert count > 2
    assert done.notices == (f"{count} tensors are unpacked to bf16 from {notice}",)
    export_model(str(tmp_path / "checkpoint"), tmp_path / "out", dtype="fp32")
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
    assert "quantization_config" not in json.loads((tmp_path / "out" / "config.json").read_text())


def test_bytes_of_mxfp4_hold_the_lower_half_first() -> None:
    blocks = torch.zeros(1, 2, 1, 16, dtype=torch.uint8)
    blocks[0, 0, 0, 0] = 0x7A  # -1, then 6
    blocks[0, 1, 0, 15] = 0xF1  # 0.5, then -6
    scales = torch.tensor([[[128], [124]]], dtype=torch.uint8)  # x 2, and / 8
    expected = torch.zeros(1, 32, 2, dtype=torch.bfloat16)
    expected[0, :2, 0] = torch.tensor([-2.0, 12.0])
    expected[0, 30:, 1] = torch.tensor([0.0625, -0.75])
    assert torch.equal(from_mxfp4("x", blocks, scales), expected)


def test_stacked_experts_in_fp8_have_blocks_of_their_own() -> None:
    values = torch.ones(2, 3, 5).to(torch.float8_e4m3fn)
    scales = torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]])
    found = from_fp8("x", values, scales, (4, 3))
    row = torch.tensor([[1.0, 1, 1, 2, 2], [3.0, 3, 3, 4, 4]])
    assert torch.equal(found.float(), row[:, None, :].expand(2, 3, 5))


@pytest.mark.hf
def test_transformers_unpacks_the_same() -> None:
    pytest.importorskip("transformers")
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    packed, _ = mxfp4_files()
    blocks, scales = packed[f"{GATE_UP}_blocks"], packed[f"{GATE_UP}_scales"]
    assert torch.equal(from_mxfp4("x", blocks, scales), convert_moe_packed_tensors(blocks, scales))


def without(name: str) -> Callable[[Tensors], None]:
    return lambda files: files.__delitem__(name)


def becomes(name: str, value: torch.Tensor) -> Callable[[Tensors], None]:
    return lambda files: files.__setitem__(name, value)


BROKEN: list[tuple[Any, Callable[[Tensors], None], str]] = [
    (V3, without(ONE), rf"{ONE}_scale_inv has no {ONE} beside it"),
    (V3, without(f"{ONE}_scale_inv"), rf"{ONE} holds torch.float8_e4m3fn and has no scales"),
    (
        V3,
        becomes(f"{ONE}_scale_inv", torch.ones(4, 2)),
        rf"{ONE}_scale_inv has shape \(4, 2\); expected \(2, 4\) for {ONE} of \(20, 32\)",
    ),
    (
        V3,
        becomes(ONE, torch.ones(20, 32)),
        rf"{ONE} holds torch.float32; expected torch.float8_e4m3fn, as it has scales",
    ),
    (OSS, without(f"{GATE_UP}_scales"), rf"{GATE_UP} is missing"),
    (
        OSS,
        becomes(f"{GATE_UP}_scales", torch.full((12, 64, 1), 255, dtype=torch.uint8)),
        r"gate_up_proj_blocks has scales that are no number \(255\)",
    ),
    (
        OSS,
        becomes(f"{GATE_UP}_scales", torch.ones(12, 64, 1)),
        r"gate_up_proj_blocks and its scales hold torch.float32; expected torch.uint8",
    ),
    (
        OSS,
        becomes(f"{GATE_UP}_blocks", torch.zeros(12, 64, 1, 8, dtype=torch.uint8)),
        rf"{GATE_UP} has shape \(12, 16, 64\); expected \(12, 32, 64\)",
    ),
]


@pytest.mark.parametrize(("model", "change", "message"), BROKEN)
def test_what_does_not_fit_is_refused_by_name(
    tmp_path: Path, model: Any, change: Callable[[Tensors], None], message: str
) -> None:
    files, settings = (fp8_files, FP8) if model is V3 else (mxfp4_files, MXFP4)
    tensors, _ = files()
    change(tensors)
    source = write(tmp_path / "source", model, tensors=tensors, quantization_config=settings)
    with pytest.raises(DataError, match=message):
        import_model(source, str(tmp_path / "checkpoint"))


def test_groups_of_another_size_are_refused() -> None:
    blocks = torch.zeros(1, 2, 1, 8, dtype=torch.uint8)
    with pytest.raises(DataError, match=r"x has shape \(1, 2, 1, 8\); expected experts, rows"):
        from_mxfp4("x", blocks, torch.zeros(1, 2, 1, dtype=torch.uint8))


def test_packed_numbers_need_a_config_that_says_so(tmp_path: Path) -> None:
    tensors, _ = fp8_files()
    bare = {name: value for name, value in tensors.items() if "scale" not in name}
    source = write(tmp_path / "source", V3, tensors=bare)
    with pytest.raises(DataError, match=r"holds torch.float8_e4m3fn and has no scales; expected"):
        import_model(source, str(tmp_path / "checkpoint"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"quant_method": "gptq"}, r"quant_method = 'gptq' is not supported; expected 'fp8' or"),
        (FP8 | {"weight_block_size": None}, r"weight_block_size = None; expected two sizes"),
        (FP8 | {"weight_block_size": [128, 0]}, r"weight_block_size = \[128, 0\]; expected two"),
        (FP8 | {"fmt": "e5m2"}, r"fmt = 'e5m2' is not supported; expected 'e4m3'"),
    ],
)
def test_other_packings_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        packing_of({"quantization_config": given})
    assert packing_of({}) is None
