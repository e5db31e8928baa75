"""The machines and the network, as the planning commands take them to be."""

from typing import Literal

from pydantic import Field

from disagmoe.config.base import Section

MachineName = Literal["a100", "h100", "h800", "h20", "h200", "b200", "cpu"]
MACHINE_FILE = ".json"
"""Ending of the name of a file that `disagmoe calibrate` writes."""


class HardwareConfig(Section):
    """What `simulate` takes a worker and its network to be, since it may run elsewhere; `train`
    does not read it."""

    attention_machine: str = "h800"
    """Machine of an attention worker: `a100`, `h100`, `h800`, `h20`, `h200`, `b200`, one core of a
    server (`cpu`), or a file that `disagmoe calibrate --out NAME.json` has written on such a
    machine."""
    expert_machine: str = "same"
    """Machine of an expert worker, likewise, or the `same`."""
    calibration: Literal[
        "usual", "h800-kernel", "h800-paperfit", "h800-paperstep", "cpu-kernel"
    ] = "usual"
    """Share of data sheets that is reached: `h800-kernel` from measured kernels and links,
    `h800-paperfit` from the DisagMoE paper (`h800-paperstep`: its figure read as a whole step),
    `cpu-kernel` for cores. `usual`: the first, the last for `cpu`, or what a file has measured."""
    workers_per_node: int = Field(default=8, ge=1)
    """Workers on one host, which reach each other without the network."""
    mixed_nodes: bool = False
    """Whether the attention and expert workers of a pair of groups share their hosts, so that part
    of what they exchange stays inside; else hosts have one kind."""
    attention_nics: float = Field(default=1.0, gt=0)
    """Network cards per attention worker, which may be a share of one."""
    expert_nics: float = Field(default=1.0, gt=0)
    """Network cards per expert worker: 16 for a group of 10 are 1.6."""
    nic_speed: float = Field(default=1.0, gt=0)
    """Speed of every network card, as a multiple of the usual one of its machine (400 Gbit/s; A100
    and H20 200, `cpu` 10)."""
    communication_sms: int = Field(default=0, ge=0)
    """Multiprocessors that kernels of transfers hold while compute goes on: 0 where network card
    and host do it alone, 20 in DeepSeek-V3's training."""
    expert_skew: float = Field(default=0.0, ge=0)
    """How unequally tokens choose experts: popularity falls as 1 / rank to this power; 0 is
    balanced. Workers are simulated one by one where it is not 0."""
    routing_peak: float = Field(default=3.0, ge=1)
    """How many times as many tokens as usual may come to an expert worker in one layer of one
    micro-batch: memory is kept free for so many, at most for all of them."""
    slow_worker: str = ""
    """A worker that computes slower than the others, as in `F0.3`; none where empty. Workers are
    simulated one by one where it is given."""
    slow_factor: float = Field(default=1.5, ge=1)
    """How many times as long its compute takes."""
