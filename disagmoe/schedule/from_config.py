"""What a run config asks the compiler for; the command line and the runtime both come this way."""

from dataclasses import dataclass, field

from disagmoe.config.hosts import workers_per_host
from disagmoe.config.parallel import COLOCATED, micro_batches
from disagmoe.config.resolve import depth_in_flight, resolve
from disagmoe.config.run import RunConfig
from disagmoe.config.trained import refuse_only_planned
from disagmoe.errors import ConfigError
from disagmoe.schedule.compile import Compiled, build_programs, compile_programs
from disagmoe.schedule.costs import OpCosts
from disagmoe.schedule.ir import ProgramSpec
from disagmoe.schedule.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRequest:
    """Arguments of `compile_programs`."""

    spec: ProgramSpec
    schedule: str
    in_flight: int
    costs: OpCosts = field(default_factory=OpCosts)

    def build(self, costs: OpCosts | None = None) -> Compiled:
        """Compile without the proof; see `build_programs`."""
        return build_programs(
            self.spec,
            schedule=self.schedule,
            in_flight=self.in_flight,
            costs=costs or self.costs,
        )

    def compile(self, costs: OpCosts | None = None) -> Compiled:
        """Compile and verify; without `costs` with those of the config."""
        return compile_programs(
            self.spec,
            schedule=self.schedule,
            in_flight=self.in_flight,
            costs=costs or self.costs,
        )


def programs_for(config: RunConfig, *, training: bool = True) -> ProgramRequest:
    """Return what to compile for a step of `config`, or for its evaluation of all held-out
    sequences. Layers of the ring are those with experts; dense ones before them count as part of
    the embedding.

    Raises:
        ConfigError: `config` breaks a rule between settings, or is not divided yet.
    """
    if config.parallel.layout == "auto":
        raise ConfigError(
            'parallel.layout = "auto" has no programs before it is divided; `disagmoe train` and '
            "`simulate` do that, `disagmoe plan --out DIR` writes DIR/run.toml, which has them"
        )
    loss = config.train.loss
    # in_flight and residual do not depend on the device, so it is taken to be what is asked for
    parallel = resolve(config, cuda=config.cluster.device == "cuda").parallel
    layout = Layout(
        layers=config.model.moe_layers,
        groups=parallel.groups,
        attention_workers=parallel.attention_workers,
        expert_workers=parallel.expert_workers,
        direct_residual=parallel.residual == "direct",
        fused_residual=parallel.residual == "fused",
        colocated=parallel.schedule in COLOCATED,
        rings=parallel.rings,
        workers_per_host=workers_per_host(config),
    )
    held_out = micro_batches(config.train.eval.sequences, parallel.micro_batch_size, parallel.rings)
    count = config.micro_batches if training else held_out
    spec = ProgramSpec(
        layout=layout,
        micro_batches=count,
        training=training,
        split_backward=training and parallel.split_backward,
        reduce_counts=training and loss.aux_coef > 0 and loss.aux_scope != "sequence",
        counts_of_step=training and loss.balances_step,
    )
    depth = depth_in_flight(parallel, config.micro_batches, all_of_step=loss.balances_step)
    in_flight = min(depth, count)
    return ProgramRequest(
        spec=spec,
        schedule=parallel.schedule,
        in_flight=in_flight,
        costs=OpCosts(**parallel.costs.model_dump()),
    )


def compile_for(
    config: RunConfig, costs: OpCosts | None = None
) -> tuple[Compiled, Compiled | None]:
    """Compile the training programs of `config`, and those of its evaluation if it has one, for a
    run. Raises ConfigError where no run can execute `config` yet."""
    refuse_only_planned(config)
    train = programs_for(config).compile(costs)
    if config.train.eval.every == 0:
        return train, None
    return train, programs_for(config, training=False).compile(costs)
