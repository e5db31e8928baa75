"""What is to be costed: a model, divided over machines, in batches of a size."""

from dataclasses import dataclass
from functools import cached_property

from disagmoe.config.hardware import MACHINE_FILE, HardwareConfig
from disagmoe.config.model import ModelConfig
from disagmoe.config.parallel import COLOCATED, ParallelConfig
from disagmoe.config.run import RunConfig
from disagmoe.config.shares import apportion
from disagmoe.costs.calibration import calibration
from disagmoe.costs.hardware import Precision, hardware
from disagmoe.costs.kernels import Machine
from disagmoe.costs.measured import read_machine
from disagmoe.errors import ConfigError
from disagmoe.schedule.layout import Group, Layout, Side, Worker


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One step of one run."""

    model: ModelConfig
    layout: Layout
    """The ring of the layers with experts, with its residual resolved."""
    parallel: ParallelConfig
    """Sizes, shares and what travels."""
    hardware: HardwareConfig
    """Hosts and network."""
    attention: Machine
    experts: Machine
    sequence_length: int
    head_tokens: int
    """Tokens whose logits are in memory at a time."""
    overlaps: bool = True
    """Whether workers compute while they communicate."""

    @property
    def shared_with_experts(self) -> bool:
        """Whether there are shared experts, and on the expert workers."""
        return self.model.shared_width > 0 and self.parallel.shared_experts == "expert"

    @cached_property
    def attention_model(self) -> ModelConfig:
        """The model without shared experts that are on the expert workers."""
        if not self.shared_with_experts:
            return self.model
        return self.model.model_copy(update={"shared_width": 0})

    def recomputes(self, side: Side) -> bool:
        """Whether `side` computes its activations again instead of keeping them."""
        kinds = {Side.ATTENTION: "attention", Side.EXPERT: "experts"}
        return self.parallel.recompute in ("all", kinds.get(side))

    @cached_property
    def sequences(self) -> tuple[int, ...]:
        """Sequences of a micro-batch on each attention worker."""
        return tuple(apportion(self.parallel.micro_batch_size, self.parallel.attention_weights))

    @cached_property
    def tokens(self) -> tuple[int, ...]:
        """Tokens of a micro-batch on each attention worker."""
        return tuple(count * self.sequence_length for count in self.sequences)

    @cached_property
    def expert_parts(self) -> tuple[int, ...]:
        """Experts of a layer on each expert worker."""
        return tuple(apportion(self.model.experts, self.parallel.expert_weights))

    def paces(self, group: Group) -> tuple[float, ...]:
        """How many times as long as usual each worker of `group`, which has workers, computes."""
        asked, size = self.hardware, self.layout.size(group)
        if not asked.slow_worker:
            return (1.0,) * size
        names = (str(Worker(group, rank)) for rank in range(size))
        return tuple(asked.slow_factor if name == asked.slow_worker else 1.0 for name in names)


def scenario_of(config: RunConfig, layout: Layout) -> Scenario:
    """Return the scenario of `config`, whose ring is `layout`.

    Raises:
        ConfigError: no rates are known for its precision, or transfers hold all of a machine.
    """
    asked, parallel = config.hardware, config.parallel
    sides = {
        "attention": asked.attention_machine,
        "experts": (
            asked.attention_machine if asked.expert_machine == "same" else asked.expert_machine
        ),
    }
    machines = {side: _machine(config, name) for side, name in sides.items()}
    for machine in machines.values():
        held, there = asked.communication_sms, machine.hardware.multiprocessors
        if held >= there:
            raise ConfigError(
                f"hardware.communication_sms = {held} leaves nothing to compute with on "
                f"{machine.hardware.name}, which has {there}; use 0 to {there - 1}"
            )
    return Scenario(
        model=config.model,
        layout=layout,
        parallel=parallel,
        hardware=asked,
        attention=machines["attention"],
        experts=machines["experts"],
        sequence_length=config.train.sequence_length,
        head_tokens=config.train.loss.head_tokens(config.model.vocab_size),
        overlaps=parallel.schedule not in ("serial", "ep_1f1b"),
    )


def _machine(config: RunConfig, name: str) -> Machine:
    if name.endswith(MACHINE_FILE):
        return read_machine(name).machine(_precision(config, read_machine(name).hardware.name))
    wanted = config.hardware.calibration
    usual = "cpu-kernel" if name == "cpu" else "h800-kernel"
    machine = Machine(
        hardware=hardware(name),
        calibration=calibration(usual if wanted == "usual" else wanted),
        precision=_precision(config, name),
    )
    _ = machine.peak_flops  # refuses a precision without rates
    return machine


def _precision(config: RunConfig, machine: str) -> Precision:
    """`auto` as the machine would resolve it."""
    asked = config.train.precision
    if asked != "auto":
        return asked
    return "fp32" if machine == "cpu" else "bf16"


def colocated(parallel: ParallelConfig) -> bool:
    """Whether the same workers have attention and experts."""
    return parallel.schedule in COLOCATED
