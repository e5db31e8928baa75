"""`disagmoe config`, run as a user runs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from disagmoe.config.explain import explain, markdown
from disagmoe.config.run import RunConfig
from disagmoe.config.starter import STARTER, starter_toml

ROOT = Path(__file__).resolve().parents[3]


def disagmoe(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "disagmoe", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80", "NO_COLOR": "1", **env},
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], explain()),
        (["train.loss.z_coef"], explain("train.loss.z_coef")),
        (["--markdown"], markdown()),
    ],
)
def test_explain(arguments: list[str], text: str, tmp_path: Path) -> None:
    result = disagmoe("config", "explain", *arguments, cwd=tmp_path)
    assert (result.returncode, result.stdout, result.stderr) == (0, text, "")


def test_explain_an_unknown_key(tmp_path: Path) -> None:
    result = disagmoe("config", "explain", "train.lr", cwd=tmp_path)
    message = "error: 'train.lr' is no setting; did you mean train.optimizer.lr?\n"
    assert (result.returncode, result.stdout, result.stderr) == (2, "", message)


def test_explain_one_key_as_markdown_is_refused(tmp_path: Path) -> None:
    result = disagmoe("config", "explain", "model", "--markdown", cwd=tmp_path)
    assert result.returncode == 2
    assert "--markdown prints all settings; leave out KEY" in result.stderr


def test_init_writes_a_config_that_loads(tmp_path: Path) -> None:
    result = disagmoe("config", "init", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "wrote run.toml; its [data] table names the tokens to train on\n"
    assert (tmp_path / "run.toml").read_text(encoding="utf-8") == starter_toml("run.toml")
    assert RunConfig.load(tmp_path / "run.toml") == STARTER


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("precious", encoding="utf-8")
    result = disagmoe("config", "init", "--out", "mine.toml", cwd=tmp_path)
    message = "error: mine.toml: exists and is left as it is; name another file with --out\n"
    assert (result.returncode, result.stdout, result.stderr) == (2, "", message)
    assert (tmp_path / "mine.toml").read_text(encoding="utf-8") == "precious"


def test_init_into_a_missing_folder(tmp_path: Path) -> None:
    result = disagmoe("config", "init", "--out", "no/run.toml", cwd=tmp_path)
    message = "error: no/run.toml: cannot be written: No such file or directory\n"
    assert (result.returncode, result.stdout, result.stderr) == (2, "", message)


def test_a_traceback_is_shown_on_demand(tmp_path: Path) -> None:
    result = disagmoe("config", "explain", "zq", cwd=tmp_path, DISAGMOE_TRACEBACK="1")
    assert "Traceback (most recent call last)" in result.stderr
    assert result.returncode != 0


def test_config_commands_start_without_torch_and_ray(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "sys.argv = ['disagmoe', 'config', 'explain', 'name']\n"
        "from disagmoe.cli.main import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as end:\n"
        "    assert not end.code, end.code\n"
        "print(sorted({'torch', 'ray', 'numpy', 'pyarrow', 'cupy'} & sys.modules.keys()))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == explain("name") + "[]\n"
