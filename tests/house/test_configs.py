"""House rules on settings: documented, with units, docs fresh, and every config file loads."""

from pathlib import Path

import pytest

from disagmoe.config.catalogue import settings, tables
from disagmoe.config.explain import markdown
from disagmoe.config.load import load_model, override
from disagmoe.config.resolve import resolve
from disagmoe.config.rules import CAUTIONS, RULES, warnings
from disagmoe.config.run import RunConfig
from disagmoe.config.starter import STARTER
from disagmoe.config.tomlwrite import dump_toml

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "configs").rglob("*.toml"))
MODELS = sorted((ROOT / "configs" / "models").glob("*.toml"))
CONFIGS = [path for path in FILES if path not in MODELS]
LONGEST_DOC = 320  # characters; what needs more belongs into a README


def test_every_setting_and_table_has_a_docstring() -> None:
    named = [(setting.name, setting.doc) for setting in settings(RunConfig).values()]
    named += [(table.name, table.doc) for table in tables(RunConfig)]
    named += [(rule.__name__, rule.__doc__ or "") for rule in (*RULES, *CAUTIONS)]
    assert [name for name, doc in named if not 8 <= len(doc) <= LONGEST_DOC] == []
    assert [name for name, doc in named if not doc.endswith(".")] == []


def test_docs_are_fresh() -> None:
    written = (ROOT / "docs" / "config.md").read_text(encoding="utf-8")
    assert written == markdown(), (
        "docs/config.md is stale; run `disagmoe config explain --markdown > docs/config.md`"
    )


def test_the_configs_that_users_and_tests_rely_on_are_there() -> None:
    names = {str(path.relative_to(ROOT / "configs")) for path in CONFIGS}
    assert {"quickstart.toml", "tiny.toml", "tiny_mixtral.toml"} <= names
    assert "runs/qwen3-235b-h800x16.toml" in names


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_config_loads_and_its_resolved_dump_loads_back_equal(path: Path, tmp_path: Path) -> None:
    config = RunConfig.load(path)
    assert warnings(config) == []
    resolved = resolve(config, cuda=config.cluster.device == "cuda")
    dumped = tmp_path / "config.toml"
    dumped.write_text(dump_toml(resolved), encoding="utf-8")
    assert RunConfig.load(dumped) == resolved


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_model_loads_and_fits_into_a_run(path: Path) -> None:
    model = load_model(path)
    assert override(STARTER, [f"model={path}"]).model == model


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_config_says_what_it_is_for(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert text.isascii()
