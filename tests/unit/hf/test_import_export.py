"""Files in, a checkpoint, files out: everything once, and anything else an error by its name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from disagmoe.checkpoint.find import find
from disagmoe.config.run import RunConfig
from disagmoe.errors import CheckpointError, ConfigError, DataError
from disagmoe.hf.exporting import export_model
from disagmoe.hf.importing import import_model
from disagmoe.hf.tensors import Fusion
from tests.unit.hf.models import MODELS, TIED, ids, write


def exported(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, tensor in load_file(path).items():
            assert name not in found
            found[name] = tensor
    return found


@pytest.mark.parametrize("fusion", ["per_expert", "fused"])
@pytest.mark.parametrize("name", MODELS)
def test_what_comes_out_is_what_went_in(tmp_path: Path, name: str, fusion: Fusion) -> None:
    model = MODELS[name]
    source = write(tmp_path / "source", model, fusion)
    done = import_model(source, str(tmp_path / "checkpoint"), part_bytes=5000)
    assert (done.model, done.notices) == (model, ())
    assert len(find(str(tmp_path / "checkpoint")).manifest.files) > 2
    out = tmp_path / "out"
    export_model(str(tmp_path / "checkpoint"), out, dtype="fp32", fusion=fusion, shard_bytes=20000)
    expected = ids(model, fusion)
    found = exported(out)
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        assert torch.equal(found[key], tensor), key
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == expected.keys()
    assert index["metadata"]["total_size"] == sum(4 * t.numel() for t in expected.values())
    assert {path.name for path in out.glob("*.safetensors")} == set(index["weight_map"].values())
    assert (out / "tokenizer.json").read_text() == '{"a": 1}'
    settings = json.loads((out / "config.json").read_text())
    before = json.loads((source / "config.json").read_text())
    assert settings == before | {"torch_dtype": "float32"}


def test_tied_heads_are_written_once_and_may_be_read_twice(tmp_path: Path) -> None:
    tensors = ids(TIED, "per_expert")
    both = tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}
    source = write(tmp_path / "source", TIED, tensors=both)
    import_model(source, str(tmp_path / "checkpoint"))
    export_model(str(tmp_path / "checkpoint"), tmp_path / "out", dtype="fp32")
    assert exported(tmp_path / "out").keys() == tensors.keys()
    several = tmp_path / "several"
    export_model(str(tmp_path / "checkpoint"), several, dtype="fp32", shard_bytes=20000)
    index = json.loads((several / "model.safetensors.index.json").read_text())
    found = exported(several)
    assert found.keys() == index["weight_map"].keys() == tensors.keys()
    assert all(value.numel() for value in found.values())
    assert index["metadata"]["total_size"] == sum(4 * value.numel() for value in found.values())
    other = tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"] + 1}
    source = write(tmp_path / "other", TIED, tensors=other)
    with pytest.raises(DataError, match=r"lm_head.weight differs from model.embed_tokens.weight"):
        import_model(source, str(tmp_path / "more"))


def test_more_rows_of_vocabulary_come_and_go(tmp_path: Path) -> None:
    model = MODELS["qwen3_moe/20"]
    source = write(tmp_path / "source", model)
    config = run_of(model.model_copy(update={"vocab_size": 64}))
    import_model(source, str(tmp_path / "checkpoint"), config=config)
    entry = find(str(tmp_path / "checkpoint")).manifest.parameters["embed.weight"]
    assert entry.shape == (64, 32)
    export_model(str(tmp_path / "checkpoint"), tmp_path / "out", dtype="fp32")
    for key, tensor in ids(model, "per_expert").items():
        assert torch.equal(exported(tmp_path / "out")[key], tensor), key


def run_of(model: Any, **loss: float) -> RunConfig:
    return RunConfig.model_validate(
        {
            "model": model.model_dump(),
            "train": {"steps": 2, "global_batch_size": 2, "sequence_length": 8, "loss": loss},
            "data": {"paths": ["data"]},
        }
    )


def test_balance_biases_stay_exact_beside_bf16_weights(tmp_path: Path) -> None:
    model = MODELS["deepseek_v3/20"]
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    tensors = ids(model, "per_expert")
    tensors[name] = torch.full((12,), 0.001) + 1
    source = write(tmp_path / "source", model, tensors=tensors)
    import_model(source, str(tmp_path / "checkpoint"))
    export_model(str(tmp_path / "checkpoint"), tmp_path / "out")
    found = exported(tmp_path / "out")
    assert torch.equal(found[name], tensors[name])
    assert found["model.layers.1.mlp.gate.weight"].dtype == torch.bfloat16


def broken(change: str) -> dict[str, torch.Tensor]:
    tensors = ids(MODELS["deepseek_v3/20"], "per_expert")
    expert = "model.layers.1.mlp.experts.10.up_proj.weight"
    match change:
        case "missing":
            del tensors[expert]
        case "extra":
            tensors["model.layers.1.mlp.experts.12.up_proj.weight"] = torch.zeros(20, 32)
        case "shape":
            tensors[expert] = tensors[expert].T.contiguous()
        case "mtp":
            tensors["model.layers.3.eh_proj.weight"] = torch.zeros(2)
    return tensors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("missing", r"model.layers.1.mlp.experts.10.up_proj.weight is missing"),
        ("extra", r"model.layers.1.mlp.experts.12.up_proj.weight belongs to nothing"),
        ("shape", r"experts.10.up_proj.weight has shape \(32, 20\); expected \(20, 32\)"),
        ("mtp", r"layers.3.eh_proj.weight is of a layer of multi-token prediction"),
    ],
)
def test_other_weights_are_refused_by_name(tmp_path: Path, change: str, message: str) -> None:
    source = write(tmp_path / "source", MODELS["deepseek_v3/20"], tensors=broken(change))
    with pytest.raises(DataError, match=message):
        import_model(source, str(tmp_path / "checkpoint"))
    assert not (tmp_path / "checkpoint").exists()


def test_layers_of_multi_token_prediction_are_left_out_when_asked(tmp_path: Path) -> None:
    source = write(tmp_path / "source", MODELS["deepseek_v3/20"], tensors=broken("mtp"))
    done = import_model(source, str(tmp_path / "checkpoint"), without_mtp=True)
    assert done.notices == ("left out: model.layers.3.eh_proj.weight",)


def test_a_coefficient_of_config_json_is_used_or_told(tmp_path: Path) -> None:
    model = MODELS["mixtral/20"]
    source = write(tmp_path / "source", model, router_aux_loss_coef=0.02)
    import_model(source, str(tmp_path / "own"))
    own = find(str(tmp_path / "own")).manifest.run_config()
    assert own.train.loss.aux_coef == pytest.approx(0.02)  # top-3 of 12, 3 layers: K / L = 1
    done = import_model(source, str(tmp_path / "other"), config=run_of(model, aux_coef=0.5))
    assert done.notices == (
        "router_aux_loss_coef = 0.02 of config.json is train.loss.aux_coef = 0.02 here, and the "
        "config has 0.5",
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [("", r"config.json: is no JSON .*; download it again"), ("[]", r"holds no JSON object")],
)
def test_an_empty_config_is_refused(tmp_path: Path, content: str, message: str) -> None:
    source = write(tmp_path / "source", MODELS["mixtral/20"])
    (source / "config.json").write_text(content)
    with pytest.raises(DataError, match=message):
        import_model(source, str(tmp_path / "checkpoint"))


def test_missing_and_broken_files_are_told(tmp_path: Path) -> None:
    source = write(tmp_path / "source", MODELS["mixtral/20"])
    weights = source / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:100])
    with pytest.raises(DataError, match=r"model.safetensors: is no whole safetensors file"):
        import_model(source, str(tmp_path / "checkpoint"))
    weights.unlink()
    with pytest.raises(DataError, match=r"holds neither model.safetensors nor"):
        import_model(source, str(tmp_path / "checkpoint"))
    index = {"weight_map": {"a": "one.safetensors", "b": "one.safetensors"}}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match=r"one.safetensors: is missing"):
        import_model(source, str(tmp_path / "checkpoint"))
    save_file({"a": torch.zeros(1)}, source / "one.safetensors")
    with pytest.raises(DataError, match=r"one.safetensors: lacks b, which .* says it holds"):
        import_model(source, str(tmp_path / "checkpoint"))


def test_another_model_and_full_folders_are_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "source", MODELS["mixtral/20"])
    with pytest.raises(ConfigError, match=r"model.expert_width = 32, but config.json says 20"):
        import_model(source, str(tmp_path / "x"), config=run_of(MODELS["mixtral/32"]))
    import_model(source, str(tmp_path / "checkpoint"))
    with pytest.raises(CheckpointError, match="holds checkpoints of another run"):
        import_model(source, str(tmp_path / "checkpoint"))
    with pytest.raises(ConfigError, match="is not empty; name a new folder"):
        export_model(str(tmp_path / "checkpoint"), source)
    other = write(tmp_path / "other", MODELS["mixtral/32"])
    with pytest.raises(ConfigError, match=r"model.expert_width = 20 in the checkpoint, 32 in"):
        export_model(str(tmp_path / "checkpoint"), tmp_path / "out", like=other)
