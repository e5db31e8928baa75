import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from disagmoe.cli.schedule import app
from disagmoe.config.run import RunConfig
from disagmoe.errors import ConfigError
from disagmoe.schedule.from_config import programs_for
from disagmoe.schedule.text import read_programs, write_program
from disagmoe.schedule.verify import RULES

CONFIG = """\
[model]
family = "mixtral"
vocab_size = 16
hidden = 8
layers = 2
heads = 2
kv_heads = 1
head_dim = 4
experts = 4
top_k = 2
expert_width = 8

[train]
steps = 1
global_batch_size = 2
sequence_length = 4

[train.eval]
sequences = 3

[data]
paths = ["data"]
"""
NAMES = [rule.__name__ for rule in RULES]


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def folder(tmp_path, config):
    """Programs of the config as files."""
    request = programs_for(RunConfig.load(config))
    for program in request.compile().programs.programs:
        (tmp_path / f"{program.group}.sched").write_text(write_program(program, request.spec))
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_show_draws_a_row_per_group(config):
    done = run("show", "--config", config, "--width", 40)
    assert done.exit_code == 0
    assert done.stdout == (
        "af_pipe, training: 2 layers on 1 x (1 attention + 1 expert) workers, 2 micro-batches, "
        "2 in flight\n"
        "makespan 19.15, lower bound 18.6 (2 in flight), gap 3.0 %\n"
        "utilisation 68.4 %, exposed communication 11.0 %, bubble 20.6 %\n"
        "\n"
        "   0                                  19.15\n"
        "A0 0011.-00011.-aabb...-aaaabbbb.-aaaaabbbb\n"
        "F0 ..-00111--0011.-aaaabbbb.-aaaabbbbb.....\n"
        "0-9: forward of micro-batch 0-9; a-j: backward of micro-batch 0-9 (head: forward and "
        "backward);\n"
        "tens of the micro-batch are left out; '-': waits for the network; '.': waits for others\n"
        "\n"
        "group  utilisation  exposed  bubble  peak slots  instructions\n"
        "A0          74.2 %   11.0 %  14.9 %          15            85\n"
        "F0          62.7 %   11.0 %  26.4 %          10            67\n"
    )


def test_show_takes_settings_and_a_part_of_the_time(config):
    done = run("show", "--config", config, "--set", "parallel.groups=2", "--from", 1, "--to", 3)
    assert done.exit_code == 0
    assert "2 layers on 2 x" in done.stdout
    rows = done.stdout.splitlines()[4:9]
    assert [row[:2] for row in rows] == ["  ", "A0", "A1", "F0", "F1"]
    assert rows[0].split() == ["1", "3"]


def test_show_group_prints_its_program(config, folder):
    done = run("show", "--config", config, "--group", "F0")
    assert done.stdout == (folder / "F0.sched").read_text()
    as_json = run("show", "--config", config, "--group", "F0", "--json")
    assert json.loads(as_json.stdout) == {"group": "F0", "program": done.stdout}


def test_show_json_is_one_object(config):
    shown = json.loads(run("show", "--config", config, "--eval", "--json").stdout)
    groups = shown.pop("groups")
    assert [group["group"] for group in groups] == ["A0", "F0"]
    shares = {"utilisation", "exposed_communication", "bubble"}
    assert set(groups[0]) == {"group", *shares, "peak_slots", "instructions"}
    spans = shown.pop("spans")
    first = {"group": "A0", "op": "embed", "layer": None, "micro_batch": 0, "start": 0, "end": 0.05}
    assert spans[0] == first
    assert len(spans) == 3 * (2 * 2 + 2)
    makespan = shown.pop("makespan")
    assert makespan == max(span["end"] for span in spans)
    assert sum(shown.pop(share) for share in shares) == pytest.approx(1)
    assert shown.pop("gap") == makespan / shown.pop("lower_bound") >= 1
    assert shown.pop("bound") == "2 in flight"
    assert shown == {
        "schedule": "af_pipe", "training": False, "micro_batches": 3, "in_flight": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--group", "X"], "'X' is no group; expected A, F or C and a number"),
        (["--group", "A1"], "no program for A1; there are A0, F0"),
        (["--width", "3"], "3 columns are too few"),
        (["--set", "parallel.groups=3"], r"parallel\.groups = 3 is more than model\.layers = 2"),
    ],
)
def test_bad_requests_are_config_errors(config, arguments, message):
    done = run("show", "--config", config, *arguments)
    assert isinstance(done.exception, ConfigError)  # exit code 2, by cli.main
    with pytest.raises(ConfigError, match=message):
        raise done.exception


@pytest.mark.parametrize("extra", [[], ["--eval"], ["--set", "parallel.groups=2"]])
def test_verify_names_every_rule(config, extra):
    done = run("verify", "--config", config, *extra)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == "".join(f"ok    {name}\n" for name in NAMES)


def test_verify_reads_programs(folder):
    done = run("verify", "--programs", folder, "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout) == {"ok": True, "passed": NAMES, "problem": None}


def test_verify_stops_at_a_broken_rule_with_exit_code_2(folder):
    path = folder / "A0.sched"
    path.write_text(path.read_text().replace("free A.hidden L0 m1\n", ""))
    done = run("verify", "--programs", folder)
    assert done.exit_code == 2
    assert done.stdout == "".join(f"ok    {name}\n" for name in NAMES[:3])
    assert done.stderr == "error: slots_live: A0: never freed: A.hidden L0 m1\n"
    as_json = run("verify", "--programs", folder, "--json")
    assert as_json.exit_code == 2
    assert json.loads(as_json.stdout) == {
        "ok": False,
        "passed": NAMES[:3],
        "problem": "slots_live: A0: never freed: A.hidden L0 m1",
    }


def test_verify_names_the_file_that_it_cannot_read(folder, tmp_path):
    (folder / "F0.sched").write_text("disagmoe-sched 7\n")
    done = run("verify", "--programs", folder)
    assert done.exit_code == 2
    assert f"error: {folder / 'F0.sched'}: line 1: expected 'disagmoe-sched 4'" in done.stderr
    (folder / "F0.sched").write_bytes(b"\xff")
    done = run("verify", "--programs", folder)
    assert (done.exit_code, "F0.sched: cannot be read" in done.stderr) == (2, True)
    done = run("verify", "--programs", tmp_path / "nowhere")
    assert (done.exit_code, "holds no *.sched files" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either --config or --programs"),
        (["--config", "x", "--programs", "y"], "give either --config or --programs"),
        (["--programs", "y", "--eval"], "--set and --eval belong to --config"),
        (["--programs", "y", "--set", "name='x'"], "--set and --eval belong to --config"),
    ],
)
def test_verify_has_one_source(arguments, message):
    done = run("verify", *arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.replace("\u2502", " ").split())


def test_the_text_of_show_is_what_verify_reads(config):
    texts = [run("show", "--config", config, "--group", name).stdout for name in ("A0", "F0")]
    assert read_programs(texts) == programs_for(RunConfig.load(config)).compile().programs


def test_schedules_need_neither_torch_nor_ray():
    code = (
        "import sys; from disagmoe.cli import schedule; "
        "print(sorted({'torch', 'ray', 'numpy', 'pyarrow'} & set(sys.modules)))"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("[]\n", 0)
