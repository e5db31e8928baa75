"""Ops of the runtime for real, on a network of no size, and what is made of them."""

from dataclasses import replace

import pytest
import torch

from disagmoe.calibrate.ops import OpSample, fit_flash, fit_ops, sample_ops, serial
from disagmoe.config.load import override
from disagmoe.config.starter import STARTER
from disagmoe.costs.calibration import CPU_KERNEL, OpFit
from disagmoe.costs.hardware import CPU
from disagmoe.costs.kernels import Machine
from disagmoe.costs.scenario import scenario_of
from disagmoe.costs.times import StepTimes
from disagmoe.runtime.clock import Span
from disagmoe.runtime.trace import WorkerTrace
from disagmoe.schedule.accounting import Kind
from disagmoe.schedule.from_config import programs_for
from disagmoe.schedule.layout import Worker
from tests.unit.actors.fakes import step_report
from tests.unit.runtime.tiny import tiny

MACHINE = Machine(hardware=CPU, calibration=CPU_KERNEL, precision="fp32")
OPS = {"embed", "attn_fwd", "experts_fwd", "head", "experts_bwd", "attn_bwd", "embed_bwd"}


def times_of(config, machine=MACHINE):
    scenario = scenario_of(config, programs_for(config).spec.layout)
    return StepTimes(replace(scenario, attention=machine, experts=machine))


def sample_by(machine, length, size, layout="af_pipe"):
    """What `machine` would show."""
    config = serial(override(STARTER, [f"train.sequence_length={length}"]), size)
    times = times_of(config, machine)
    costs = times.op_costs().to_dict()
    update = {name: times.end(Worker.parse(name)).update_s for name in ("A0.0", "F0.0")}
    return OpSample(config=config, seconds={op: costs[op] for op in OPS}, update_s=update)


def test_ops_of_a_serial_step_are_timed():
    seen = sample_ops(tiny(train__precision="fp32"), 2, torch.device("cpu"))
    assert seen.seconds.keys() == OPS
    assert seen.update_s.keys() == {"A0.0", "F0.0"}
    assert min(*seen.seconds.values(), *seen.update_s.values()) > 0
    assert seen.config.parallel.schedule == "serial"
    assert seen.config.parallel.in_flight == 1


def test_a_sample_has_the_median_of_the_means_of_steps():
    def report(update_s, **spans):
        traced = tuple(
            Span(Kind.COMPUTE, f"{op} L0 m0", 1.0, 1.0 + seconds)
            for op, each in spans.items()
            for seconds in each
        )
        return replace(
            step_report(0),
            seconds={Kind.OPTIMIZER: update_s},
            trace=WorkerTrace(0, (*traced, Span(Kind.IDLE, "", 0.0, 9.0)), ()),
        )

    steps = [
        {"A0.0": report(0.1, attn_fwd=[1, 3]), "F0.0": report(0.5, experts_fwd=[4])},
        {"A0.0": report(0.3, attn_fwd=[9, 9]), "F0.0": report(0.6, experts_fwd=[5])},
        {"A0.0": report(0.2, attn_fwd=[4, 2]), "F0.0": report(0.7, experts_fwd=[9])},
    ]
    seen = OpSample.of(STARTER, steps)
    assert seen.seconds == {"attn_fwd": pytest.approx(3.0), "experts_fwd": pytest.approx(5.0)}
    assert seen.update_s == {"A0.0": 0.2, "F0.0": 0.6}


def test_what_is_fitted_is_what_was_measured():
    fits = {name: OpFit(factor=1.5, fixed_s=2e-3) for name in (*OPS, "update")}
    slower = replace(MACHINE, calibration=replace(CPU_KERNEL, ops=fits))
    samples = [sample_by(slower, 256, size) for size in (1, 2, 4)]
    found = fit_ops(samples, MACHINE)
    for name in OPS:
        assert found[name].factor == pytest.approx(1.5, rel=1e-6)
        assert found[name].fixed_s == pytest.approx(2e-3, rel=1e-6)
    # a split backward has the constant of the whole one, in two halves
    assert found["experts_dgrad"].fixed_s == pytest.approx(1e-3, rel=1e-6)
    again = replace(MACHINE, calibration=replace(CPU_KERNEL, ops=found))
    config = samples[0].config
    assert times_of(config, again).op_costs().attn_fwd == pytest.approx(
        times_of(config, slower).op_costs().attn_fwd
    )


def test_attention_in_layers_may_go_at_another_rate_than_alone():
    flash = tuple(replace(one, share=one.share / 2) for one in CPU_KERNEL.flash)
    slower = replace(MACHINE, calibration=replace(CPU_KERNEL, flash=flash, flash_backward=0.4))
    samples = [sample_by(slower, length, 2) for length in (256, 512, 2048)]
    found = fit_flash(samples, MACHINE).calibration
    assert found.flash[0].share == pytest.approx(flash[0].share, rel=1e-3)
    assert found.flash_backward == pytest.approx(0.4, rel=1e-3)


def test_one_length_cannot_tell_attention_from_the_rest():
    samples = [sample_by(MACHINE, 256, 2)]
    found = fit_flash(samples, MACHINE)
    assert found.calibration.flash == MACHINE.calibration.flash
