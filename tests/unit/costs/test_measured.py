"""Files of `disagmoe calibrate`: written, read, refused, and taken by a simulation."""

import json
from dataclasses import replace

import pytest

from disagmoe.costs.calibration import CPU_KERNEL, OpFit
from disagmoe.costs.hardware import CPU
from disagmoe.costs.measured import MeasuredMachine, read_machine, write_machine
from disagmoe.errors import ConfigError
from disagmoe.simulator.simulate import simulate
from tests.unit.costs.scenarios import run

TWICE = {"attn_fwd": OpFit(factor=2.0, fixed_s=0.0)}


def machine(**ops):
    return MeasuredMachine(
        hardware=CPU, calibrations={"fp32": replace(CPU_KERNEL, name="measured-cpu", ops=ops)}
    )


def config(name):
    small = ["model.layers=2", "train.global_batch_size=4", "cluster.device=cpu"]
    names = [f'hardware.attention_machine="{name}"']
    return run("olmoe-1b-7b", *small, *names, length=256)


def test_what_is_written_is_read(tmp_path):
    file = tmp_path / "machine.json"
    write_machine(file, machine(**TWICE))
    assert read_machine(str(file)) == machine(**TWICE)
    assert [one.name for one in tmp_path.iterdir()] == ["machine.json"]


def test_a_simulation_takes_the_machine_and_its_ops(tmp_path):
    usual, slower = tmp_path / "usual.json", tmp_path / "slower.json"
    write_machine(usual, machine())
    write_machine(slower, machine(**TWICE))
    preset = simulate(config("cpu"))
    assert simulate(config(usual)).makespan_s == preset.makespan_s
    assert simulate(config(slower)).makespan_s > 1.02 * preset.makespan_s


def test_a_missing_file_says_how_to_get_it(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no file .*none\.json; `disagmoe calibrate "):
        simulate(config(tmp_path / "none.json"))


def test_another_file_is_refused_with_the_place(tmp_path):
    file = tmp_path / "machine.json"
    write_machine(file, machine())
    tree = json.loads(file.read_text())
    del tree["hardware"]["multiprocessors"]
    file.write_text(json.dumps(tree))
    expected = r"is no file of `disagmoe calibrate` of this version: hardware\.multiprocessors: "
    with pytest.raises(ConfigError, match=expected):
        read_machine(str(file))
    file.write_text("nothing")
    with pytest.raises(ConfigError, match="of this version: all of it: "):
        read_machine(str(file))


def test_a_precision_that_was_not_measured_is_refused(tmp_path):
    file = tmp_path / "machine.json"
    write_machine(file, machine())
    asked = config(file)
    train = asked.train.model_copy(update={"precision": "bf16"})
    expected = "cpu was calibrated in fp32, and the run computes in bf16; calibrate with"
    with pytest.raises(ConfigError, match=expected):
        simulate(asked.model_copy(update={"train": train}))
