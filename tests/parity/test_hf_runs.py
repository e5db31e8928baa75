"""In from Transformers, trained, evaluated, out again: the same numbers at both ends."""

import dataclasses
import json
import math
import re
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from disagmoe.actors.resume import resume_point
from disagmoe.actors.startup import open_data
from disagmoe.api import layerwise
from disagmoe.api.evaluate import evaluate
from disagmoe.api.resume import continued
from disagmoe.checkpoint.find import find
from disagmoe.checkpoint.whole import end_bytes, layer_bytes, layer_store, whole_store
from disagmoe.cli.main import app
from disagmoe.config.run import RunConfig
from disagmoe.data.manifest import TOKENIZER
from disagmoe.data.prepared import PreparedData
from disagmoe.errors import ConfigError, DataError
from disagmoe.hf.exporting import export_model
from disagmoe.hf.importing import import_model
from disagmoe.hf.verify import first_difference, tiny_models
from disagmoe.model.transformer import logits
from disagmoe.storage import Location
from tests.unit.actors.threadcrew import run_of
from tests.unit.data.conftest import in_process, make_data, prepare_here
from tests.unit.hf.models import ids, write

__all__ = ["in_process", "make_data", "prepare_here"]  # fixtures

MODELS = {
    name: model.model_copy(update={"vocab_size": 257, "init_std": 0.2})
    for name, model in tiny_models()
}


@pytest.fixture
def data(make_data: Callable[[list[str]], PreparedData]) -> str:
    return make_data([f"{i}: {'ab' * (i % 5)}" for i in range(40)]).path


def source_of(folder: Path, name: str) -> Path:
    generator = torch.Generator().manual_seed(1)
    tensors = {
        key: 0.2 * torch.randn(value.shape, generator=generator)
        for key, value in ids(MODELS[name], "per_expert").items()
    }
    return write(folder, MODELS[name], tensors=tensors)


def config_of(name: str, data: str, *, masks: bool = False) -> RunConfig:
    return RunConfig.model_validate(
        {
            "model": MODELS[name].model_dump(),
            "parallel": {"micro_batch_size": 2, "attention_workers": 2, "expert_workers": 3},
            "train": {
                "steps": 3,
                "global_batch_size": 4,
                "sequence_length": 9,
                "precision": "fp32",
                "optimizer": {"lr": 1e-2},
            },
            "data": {"paths": [data], "document_masks": masks},
        }
    )


@pytest.mark.parametrize("name", ["deepseek_v3/20", "gpt_oss/32"])
def test_training_goes_on_from_an_imported_model(tmp_path: Path, data: str, name: str) -> None:
    config = config_of(name, data)
    imported = str(tmp_path / "imported")
    import_model(source_of(tmp_path / "source", name), imported, config=config)
    before = evaluate(imported, data)
    resolved, point, _ = continued(config, find(imported), Location.parse(str(tmp_path / "run")))
    assert point == resume_point(find(imported), open_data(resolved))[0]
    with run_of(resolved, tmp_path / "run", open_data(resolved), point) as (_, events):
        assert "ok" in str(list(events)[-1])
    trained = str(tmp_path / "run")
    assert find(trained).manifest.step == 3
    after = evaluate(trained, data)
    assert after.loss < before.loss - 0.1

    export_model(trained, tmp_path / "out", like=tmp_path / "source", dtype="fp32")
    again = str(tmp_path / "again")
    import_model(tmp_path / "out", again)
    tokens = torch.arange(20).view(2, 10)
    one, other = (
        logits(whole_store(find(place), MODELS[name], torch.float32), MODELS[name], tokens)
        for place in (trained, again)
    )
    assert torch.equal(one, other)


@pytest.mark.parametrize("masks", [False, True])
def test_evaluation_does_not_depend_on_the_batch(tmp_path: Path, data: str, masks: bool) -> None:
    name = "deepseek_v3/20"
    imported = str(tmp_path / "imported")
    config = config_of(name, data, masks=masks)
    import_model(source_of(tmp_path / "source", name), imported, config=config)
    one = evaluate(imported, data)
    for size in (3, 1000):
        other = evaluate(imported, data, batch_size=size)
        assert (other.targets, other.sequences) == (one.targets, one.sequences)
        assert other.loss == pytest.approx(one.loss, rel=1e-6)
    assert one.perplexity == pytest.approx(math.exp(one.loss))
    prepared = PreparedData.open(data)
    boundaries = prepared.documents - 1  # targets that begin another document
    count = (prepared.tokens - 1) // 9 * 9
    assert one.targets <= count
    assert (one.targets < count - boundaries // 2) == masks
    if not masks:  # by hand
        tokens = torch.cat(
            [torch.from_numpy(prepared.document(d).astype("int64")) for d in range(9)]
        )[:19]
        rows = torch.stack((tokens[:10], tokens[9:19]))
        store = whole_store(find(imported), MODELS[name], torch.float32)
        found = logits(store, MODELS[name], rows[:, :-1])
        expected = F.cross_entropy(found.flatten(0, 1), rows[:, 1:].flatten())
        two = evaluate(imported, data, sequences=2)
        assert two.loss == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("name", ["deepseek_v3/20", "gpt_oss/32"])
def test_a_model_that_does_not_fit_goes_through_layer_by_layer(
    tmp_path: Path, data: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported = str(tmp_path / "imported")
    config = config_of(name, data, masks=True)
    import_model(source_of(tmp_path / "source", name), imported, config=config)
    model, batch = MODELS[name], 2 * 9 * MODELS[name].hidden * 4
    layers = [layer_bytes(model, torch.float32, layer) for layer in range(model.layers)]
    ends = end_bytes(model, torch.float32)
    store = whole_store(find(imported), model, torch.float32)
    whole = sum(value.numel() * value.element_size() for value in store.values())
    assert ends + sum(layers) == whole
    fits = evaluate(imported, data, sequences=7, batch_size=2, memory_bytes=whole + batch)
    assert fits.weight_reads == 1

    earlier: list[weakref.ref[torch.Tensor]] = []

    def one_layer(*args: Any) -> dict[str, torch.Tensor]:
        assert [ref() for ref in earlier] == [None] * len(earlier), "two layers in memory"
        found = layer_store(*args)
        earlier.extend(weakref.ref(value) for value in found.values())
        return found

    monkeypatch.setattr(layerwise, "layer_store", one_layer)
    least = ends + max(layers) + batch
    for memory, reads in ((least, 4), (least + batch, 2), (whole + batch - 1, 1)):
        shares: list[float] = []
        seen = evaluate(
            imported,
            data,
            sequences=7,
            batch_size=2,
            memory_bytes=memory,
            report=shares.append,
        )
        assert seen == dataclasses.replace(fits, weight_reads=reads)
        assert len(earlier) > 0
        assert shares == sorted(shares)
        assert (len(shares), shares[-1]) == (reads * model.layers, 1.0)
    with pytest.raises(ConfigError, match=r"may take .* KiB, but embedding, .* take .*; use --pre"):
        evaluate(imported, data, sequences=7, batch_size=2, memory_bytes=least - 1)


def test_the_command_prints_what_was_found(
    tmp_path: Path, data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    imported = str(tmp_path / "imported")
    import_model(source_of(tmp_path / "source", "mixtral/20"), imported)
    sets = ["--checkpoint", imported, "--data", data, "--sequences", "4", "--sequence-length", "5"]
    app(["evaluate", *sets, "--json"], standalone_mode=False)
    seen = evaluate(imported, data, sequences=4, sequence_length=5)
    assert json.loads(capsys.readouterr().out) == seen.as_json()
    app(["evaluate", *sets, "--batch-size", "3"], standalone_mode=False)
    assert capsys.readouterr().out == (
        f"{seen.checkpoint} on {data}: loss {seen.loss:.6f}, perplexity {seen.perplexity:.4f}, "
        "20 targets in 4 sequences\n"
    )
    with pytest.raises(ConfigError, match=r"the evaluation may take 1.0 KiB, but"):
        app(["evaluate", *sets, "--memory-gib", str(2**-20)], standalone_mode=False)


def test_too_little_data_is_told(tmp_path: Path, data: str) -> None:
    imported = str(tmp_path / "imported")
    import_model(source_of(tmp_path / "source", "mixtral/20"), imported)
    with pytest.raises(DataError, match="hold no sequence of 5000 targets; use a shorter"):
        evaluate(imported, data, sequence_length=5000)


@pytest.mark.hf
@pytest.mark.parametrize("name", ["deepseek_v3/20", "gpt_oss/32"])
def test_other_tools_find_the_same_loss_and_the_same_tokens(
    tmp_path: Path, data: str, name: str
) -> None:
    """Evaluation tools load the folder as Transformers does, and take logits of its tokens."""
    transformers = pytest.importorskip("transformers")
    source = source_of(tmp_path / "source", name)
    shutil.copyfile(Path(data) / TOKENIZER, source / "tokenizer.json")
    imported, out = str(tmp_path / "imported"), tmp_path / "out"
    import_model(source, imported)
    export_model(imported, out, dtype="fp32")
    prepared = PreparedData.open(data)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(out / "tokenizer.json"))
    words = prepared.tokenizer().decode(prepared.document(3))
    assert tokenizer.encode(words) == prepared.document(3)[:-1].tolist()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    tokens = torch.from_numpy(prepared.read(0, 3 * 9 + 1))
    rows = tokens.unfold(0, 10, 9)
    with torch.no_grad():
        found = theirs(input_ids=rows[:, :-1], use_cache=False).logits
    expected = F.cross_entropy(found.flatten(0, 1), rows[:, 1:].flatten())
    ours = evaluate(imported, data, sequences=3, sequence_length=9)
    assert ours.loss == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.hf
def test_where_a_wrong_model_first_differs_is_told(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    name = "deepseek_v3/20"
    source = source_of(tmp_path / "source", name)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    import_model(source, str(tmp_path / "imported"))
    tokens = torch.arange(20).view(2, 10)

    def told(tensor: str) -> str:
        store = whole_store(find(str(tmp_path / "imported")), MODELS[name], torch.float32)
        if tensor:
            store[tensor] *= 2
        return first_difference(theirs, store, MODELS[name], tokens)

    assert re.match(r"first differs after the embedding: [\d.e+-]+$", told("embed.weight"))
    assert re.match(r"first differs after layer 0: ", told("layers.0.dense.down.weight"))
    assert re.match(r"first differs after layer 1: ", told("layers.1.attn.o.weight"))
    only_last = "differs only after layer 2, the final norm or the LM head"
    assert told("layers.2.attn.o.weight") == told("head.weight") == only_last


@pytest.mark.hf
def test_the_command_verifies_every_family(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    app(["hf", "verify", "--json"], standalone_mode=False)
    seen = json.loads(capsys.readouterr().out)
    families = ["mixtral", "qwen3_moe", "olmoe", "deepseek_v2", "deepseek_v3", "gpt_oss"]
    assert (seen["families"], seen["ok"]) == (families, True)
    assert 0 < seen["worst_logit_difference"] < 1e-5
