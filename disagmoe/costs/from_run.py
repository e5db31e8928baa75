"""Machines as a run has found them: its measured costs over what the cost model has for it."""

from dataclasses import replace

from disagmoe.config.costs import USUAL
from disagmoe.config.run import RunConfig
from disagmoe.costs.calibration import Calibration, OpFit
from disagmoe.costs.kernels import Machine
from disagmoe.costs.measured import MeasuredMachine
from disagmoe.costs.scenario import scenario_of
from disagmoe.costs.times import StepTimes
from disagmoe.errors import ConfigError
from disagmoe.schedule.from_config import programs_for
from disagmoe.schedule.ir import COMPUTE_OPS, Op

_TRANSFERS = ("rows", "outputs", "doutputs", "drows")


def machines_of(run: RunConfig) -> tuple[MeasuredMachine, MeasuredMachine]:
    """Return the machines of attention and of expert workers of `run`, whose `parallel.costs` a
    run has measured on what its section `hardware` says.

    Every op takes as many times as long as it took in the run, and all transfers together. What
    the run does not do (parts of a split backward, evaluations) is taken from the op it is part of.

    Raises:
        ConfigError: nothing was measured in `run`.
    """
    if run.parallel.costs == USUAL:
        raise ConfigError(
            f"the run {run.name} has no measured costs; parallel.profile measures them in the "
            "second and third step of a run of 10 steps or more"
        )
    scenario = scenario_of(run, programs_for(run).spec.layout)
    modelled, measured = StepTimes(scenario).op_costs().to_dict(), run.parallel.costs.model_dump()
    fits = {
        op.value: OpFit(factor=measured[op.value] / modelled[op.value], fixed_s=0.0)
        for op in COMPUTE_OPS
        if modelled.get(op.value)
    }
    whole = fits[Op.EXPERTS_BWD.value]
    fits |= {Op.EXPERTS_DGRAD.value: whole, Op.EXPERTS_WGRAD.value: whole}
    fits[Op.HEAD_EVAL.value] = fits[Op.HEAD.value]
    faster = sum(modelled[one] for one in _TRANSFERS) / sum(measured[one] for one in _TRANSFERS)
    return tuple(  # type: ignore[return-value]  # two
        _measured(machine, fits, faster) for machine in (scenario.attention, scenario.experts)
    )


def _measured(machine: Machine, fits: dict[str, OpFit], faster: float) -> MeasuredMachine:
    """`machine` whose ops are slower by `fits`, on top of its own, and its ways `faster`."""
    own: Calibration = machine.calibration
    ops = {
        name: OpFit(factor=fit.factor * before.factor, fixed_s=fit.factor * before.fixed_s)
        for name, fit in fits.items()
        for before in (own.op(name),)
    }
    return MeasuredMachine(
        hardware=machine.hardware,
        calibrations={
            machine.precision: replace(
                own,
                name=f"{own.name}, by a run",
                ops={**own.ops, **ops},
                nic_share=own.nic_share * faster,
                nvlink_share=own.nvlink_share * faster,
                latency_s=own.latency_s / faster,
            )
        },
    )
