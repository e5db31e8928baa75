"""Which parameters each worker holds, and how many others hold the same."""

from dataclasses import dataclass

from disagmoe.config.model import ModelConfig
from disagmoe.costs import parameters
from disagmoe.costs.scenario import Scenario
from disagmoe.schedule.layout import Group, Side, Worker


@dataclass(frozen=True, slots=True)
class Holding:
    """Parameters that the same workers hold alike, each with the optimizer's state of its shard."""

    side: Side
    parameters: int
    peers: int
    """Workers of the same group and ring that hold them."""
    rings: int

    @property
    def replicas(self) -> int:
        """All workers that hold them."""
        return self.peers * self.rings

    @property
    def shard(self) -> int:
        """Parameters of the largest shard."""
        return -(-self.parameters // self.replicas)


def holdings(scenario: Scenario, worker: Worker) -> tuple[Holding, ...]:
    """Return what `worker` holds, by role."""
    layout = scenario.layout
    found = []
    for role in layout.roles_of(worker.group):
        if role.side is Side.ATTENTION:
            count = attention_parameters(scenario, role)
            found.append(Holding(role.side, count, layout.attention_workers, layout.rings))
            continue
        count = expert_parameters(scenario, role, worker.rank)
        found.append(Holding(role.side, count, 1, layout.rings))
        if scenario.shared_with_experts:
            count = len(layout.layers_of(role)) * parameters.shared_parameters(scenario.model)
            found.append(Holding(role.side, count, layout.expert_workers, layout.rings))
    return tuple(found)


def attention_parameters(scenario: Scenario, role: Group) -> int:
    """Parameters of an attention worker in `role`: its layers, and what is at the ends of the ring;
    dense layers are with the embedding."""
    model, layout = scenario.attention_model, scenario.layout
    count = len(layout.layers_of(role)) * parameters.attention_side_parameters(model)
    if role == layout.embedding:
        count += parameters.matrix_of_vocabulary(model)
        count += model.dense_layers * parameters.dense_layer_parameters(model)
    if role == layout.head:
        count += model.hidden
        count += 0 if _tied_here(scenario, model) else parameters.matrix_of_vocabulary(model)
    return count


def expert_parameters(scenario: Scenario, role: Group, rank: int) -> int:
    """Parameters of an expert worker; with a fused residual it also has the norm of each layer."""
    model, layout = scenario.model, scenario.layout
    norm = model.hidden if layout.fused_residual else 0
    own = scenario.expert_parts[rank] * parameters.expert_parameters(model) + norm
    return len(layout.layers_of(role)) * own


def _tied_here(scenario: Scenario, model: ModelConfig) -> bool:
    return model.tied_embeddings and scenario.layout.embedding == scenario.layout.head
