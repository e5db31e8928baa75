"""The machine that `bench predict` simulates: hosts, their link, and ops as workers do them.

Ops are measured in workers on all hosts at once, with whatever else a node does, by plain expert
parallelism: it computes and communicates in turns, so that nothing is beside an op but the other
hosts. What transfers take from ops beside them is measured with the link.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from disagmoe.bench.hosts import HostNetwork, inside
from disagmoe.bench.measured import size_setting
from disagmoe.bench.overlap import HOSTS, Say, Stage, config_of
from disagmoe.bench.pace import slowdown
from disagmoe.bench.raynodes import Node
from disagmoe.bench.scenarios import EP_1F1B, Scenario
from disagmoe.calibrate.machine import Request, calibrate
from disagmoe.calibrate.ops import OpSample, fit_ops
from disagmoe.calibrate.pair import End
from disagmoe.config.run import RunConfig
from disagmoe.costs.calibration import Calibration
from disagmoe.costs.hardware import Precision
from disagmoe.costs.measured import MeasuredMachine

LINK_MBIT = 200.0
"""The rate at which links and ops are measured; no case has it."""
_PRECISION: Precision = "bf16"
_SEQUENCES = (1, 2, 4)
"""Sequences of a micro-batch with which ops are measured in one process."""
_MICRO_BATCHES, _STEPS = 4, 3


def hosts_machine(
    network: HostNetwork, nodes: Sequence[Node], bases: Sequence[RunConfig], say: Say
) -> MeasuredMachine:
    """Calibrate this machine with the models of `bases`, and the link between its hosts.

    Raises:
        WorkerError, TransportError: a measurement fails.
    """
    network.limit(LINK_MBIT)
    first, second = (
        End(address=node.host.address, core=node.core, enter=partial(inside, node.host))
        for node in nodes
    )
    machine = calibrate(
        Request(
            device=torch.device("cpu"),
            precisions=(_PRECISION,),
            configs=list({base.name: base for base in bases}.values()),
            sequences=_SEQUENCES,
            ends=(first, second),
        ),
        say,
    )
    network.limit(None)
    return machine


def with_ops(
    machine: MeasuredMachine, scenario: Scenario, base: RunConfig, stage: Stage
) -> MeasuredMachine:
    """Return `machine` with the ops of `base` as they are now on the hosts of `stage`, each with
    its whole core. Raises WorkerError when a worker fails."""
    stage.conditions(replace(scenario, slow_host_cores=None))
    stage.network.limit(LINK_MBIT)
    # as many sequences as workers of either layout have
    sizes = {
        HOSTS * max(1, round(share * size))
        for size in scenario.micro_batches
        for share in (1, HOSTS)
    }
    samples = [_sample(size, scenario, base, stage) for size in sorted(sizes)]
    return replace(
        machine,
        calibrations={
            name: replace(
                one, ops=fit_ops(samples, replace(machine.machine(name), calibration=_plain(one)))
            )
            for name, one in machine.calibrations.items()
        },
    )


def last_host_pace(scenario: Scenario, nodes: Sequence[Node]) -> float:
    """Return how many times as long compute takes on the last host. Raises WorkerError when what
    measures it dies."""
    cores = scenario.slow_host_cores
    return 1.0 if cores is None else slowdown(nodes[-1].group, nodes[-1].core, cores)


def _plain(calibration: Calibration) -> Calibration:
    return replace(calibration, ops={})


def _sample(size: int, scenario: Scenario, base: RunConfig, stage: Stage) -> OpSample:
    plain = next(one for one in scenario.systems if one.name == EP_1F1B)
    settings = [
        size_setting(size),
        f"train.global_batch_size={_MICRO_BATCHES * size}",
        "trace.first_step=1",
        f"trace.steps={_STEPS}",
    ]
    config, rig = config_of(base, plain, settings), stage.rigs[EP_1F1B]
    rig.set_up(config)
    rig.step()
    return OpSample.of(config, [rig.step().reports for _ in range(_STEPS)])
