"""What must hold between the machines of a simulation and the layout."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, get_args

from disagmoe.config.catalogue import join_words
from disagmoe.config.hardware import MACHINE_FILE, HardwareConfig, MachineName
from disagmoe.config.parallel import COLOCATED, ParallelConfig
from disagmoe.config.phrases import span
from disagmoe.config.tomlwrite import format_value

if TYPE_CHECKING:  # run.py uses these rules
    from disagmoe.config.run import RunConfig


def machines_are_known(config: "RunConfig") -> Iterator[str]:
    """`hardware.attention_machine` and `hardware.expert_machine` are known machines, or files of
    `disagmoe calibrate`, which have a `hardware.calibration` of their own."""
    hardware = config.hardware
    known = list(get_args(MachineName))
    for name, also in (("attention_machine", []), ("expert_machine", ["same"])):
        machine = getattr(hardware, name)
        if machine.endswith(MACHINE_FILE):
            if hardware.calibration != "usual":
                yield (
                    f"hardware.calibration = {format_value(hardware.calibration)}, but "
                    f"hardware.{name} = {format_value(machine)} says itself what was measured; use "
                    'calibration "usual"'
                )
        elif machine not in known + also:
            yield (
                f"hardware.{name} = {format_value(machine)} is no machine that is known; use "
                f"{join_words([format_value(one) for one in also + known])}, or a file that "
                f"`disagmoe calibrate --out NAME{MACHINE_FILE}` has written on one"
            )


def colocated_machines_match(config: "RunConfig") -> Iterator[str]:
    """`hardware.expert_machine` is that of attention, and `hardware.mixed_nodes` false, where
    `parallel.schedule` has both on the same workers."""
    hardware, schedule = config.hardware, config.parallel.schedule
    if schedule not in COLOCATED:
        return
    expert, attention = hardware.expert_machine, hardware.attention_machine
    if expert not in ("same", attention):
        yield (
            f"hardware.expert_machine = {format_value(expert)} and attention_machine = "
            f"{format_value(attention)}, but parallel.schedule = {format_value(schedule)} has "
            "attention and experts on the same workers, which go at the pace of the slowest; use "
            'the slower one and expert_machine "same"'
        )
    if hardware.mixed_nodes:
        yield (
            "hardware.mixed_nodes = true has no effect with parallel.schedule = "
            f"{format_value(schedule)}, whose workers have attention and experts; use false"
        )


def slow_worker_is_there(config: "RunConfig") -> Iterator[str]:
    """`hardware.slow_worker` is empty or a worker of the first ring, and `hardware.slow_factor`
    keeps its default without one."""
    hardware, parallel = config.hardware, config.parallel
    name = hardware.slow_worker
    default = HardwareConfig.model_fields["slow_factor"].default
    if not name:
        if hardware.slow_factor != default:
            yield (
                f"hardware.slow_factor = {hardware.slow_factor} has no effect without a "
                f"hardware.slow_worker; name one, or use {default}"
            )
        return
    sizes = _group_sizes(parallel)
    group, _, rank = name.partition(".")
    if group not in sizes:
        yield (
            f"hardware.slow_worker = {format_value(name)} is no worker; groups are "
            f"{', '.join(sizes)}, and a worker is written {next(iter(sizes))}.0"
        )
    elif rank not in map(str, range(sizes[group])):
        yield (
            f"hardware.slow_worker = {format_value(name)} is no worker; the ranks of {group} are "
            f"{span(0, sizes[group] - 1)}"
        )


def _group_sizes(parallel: ParallelConfig) -> dict[str, int]:
    groups = range(parallel.groups)
    if parallel.schedule in COLOCATED:
        return {f"C{group}": parallel.attention_workers for group in groups}
    attention = {f"A{group}": parallel.attention_workers for group in groups}
    return attention | {f"F{group}": parallel.expert_workers for group in groups}
