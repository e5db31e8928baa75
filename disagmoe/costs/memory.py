"""What a worker keeps in memory at the fullest moment of a step."""

from dataclasses import dataclass, replace

from disagmoe.config.model import ModelConfig
from disagmoe.costs import parameters
from disagmoe.costs.holdings import holdings
from disagmoe.costs.kernels import Machine
from disagmoe.costs.scenario import Scenario
from disagmoe.costs.slots import (
    Load,
    SlotSizes,
    attention_saved_bytes,
    dense_saved_bytes,
    expert_activation_bytes,
    fused_norm_bytes,
)
from disagmoe.schedule.ir import GroupProgram, SlotKind
from disagmoe.schedule.layout import Group, Side, Worker
from disagmoe.schedule.passes.lifetime import peak_size

_FP32 = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Bytes of one worker."""

    weights: float
    gradients: float
    """Their sums, in fp32."""
    optimizer: float
    """Both moments of this worker's shards, and master weights where weights have 16 bits."""
    slots: float
    """Activations, gradients and messages that are alive at once, with the expected routing."""
    workspace: float
    """Temporaries of the op that has most of them, other than the head."""
    head: float
    """By how much those of the head exceed that: logits and their gradients."""
    headroom: float
    """What more it takes where, in one layer of one micro-batch, `hardware.routing_peak` times as
    many tokens come to this worker as usual."""
    system: float
    """What the device and its libraries take."""
    worst_case: float
    """What more than with the expected routing it takes where, in one layer of one micro-batch, all
    tokens come to this worker; not part of the total."""

    @property
    def expected(self) -> float:
        """What it takes with the expected routing: all of it but the headroom."""
        return self.total - self.headroom

    @property
    def total(self) -> float:
        """All that is to be there."""
        return float(
            self.weights
            + self.gradients
            + self.optimizer
            + self.slots
            + self.workspace
            + self.head
            + self.headroom
            + self.system
        )


def memory_use(scenario: Scenario, worker: Worker, program: GroupProgram) -> MemoryUse:
    """Return what `worker` keeps while it runs `program`."""
    sizes = SlotSizes(scenario, worker)
    slots = peak_size(program.program.instructions, worker.group, program.spec, sizes)
    return replace(without_slots(scenario, worker), slots=slots)


def without_slots(scenario: Scenario, worker: Worker) -> MemoryUse:
    """Return what `worker` keeps whatever its program is."""
    held = holdings(scenario, worker)
    machine = machine_of(scenario, worker.group)
    element, exact = machine.element_bytes, max(_FP32, machine.element_bytes)
    states = 2 if element == exact else 3
    sizes = SlotSizes(scenario, worker)
    workspace = max(
        0.0, *(_workspace(scenario, worker, role, sizes) for role in _roles(scenario, worker))
    )
    headroom, worst_case = _headrooms(scenario, worker, sizes)
    return MemoryUse(
        weights=sum(one.parameters for one in held) * element,
        gradients=sum(one.parameters for one in held) * exact,
        optimizer=sum(one.shard for one in held) * exact * states,
        slots=0.0,
        workspace=workspace,
        head=max(0.0, _head(scenario, worker) - workspace),
        headroom=headroom,
        system=machine.calibration.system_bytes,
        worst_case=worst_case,
    )


def machine_of(scenario: Scenario, group: Group) -> Machine:
    """The machine of the workers of `group`."""
    return scenario.experts if group.side is Side.EXPERT else scenario.attention


def _roles(scenario: Scenario, worker: Worker) -> tuple[Group, ...]:
    return scenario.layout.roles_of(worker.group)


def _workspace(scenario: Scenario, worker: Worker, role: Group, sizes: SlotSizes) -> float:
    """Temporaries of a layer's backward in `role`."""
    if role.side is Side.EXPERT:
        return _expert_workspace(scenario, worker, sizes.load(0))
    model, element = scenario.attention_model, scenario.attention.element_bytes
    tokens, again = scenario.tokens[worker.rank], 0.0
    if scenario.recomputes(Side.ATTENTION):
        again = attention_saved_bytes(model, element)
        if role == scenario.layout.embedding:  # all dense layers at once
            again = max(again, model.dense_layers * dense_saved_bytes(model, element))
    weights = element * parameters.attention_side_parameters(model)
    return tokens * (again + _attention_workspace(model, element)) + weights


def _attention_workspace(model: ModelConfig, element: int) -> float:
    """Bytes per token: gradients of the residual stream in fp32 and as computed in, those of
    queries, keys, values and output, and one norm's products in fp32."""
    mixed = model.heads * (model.qk_head_dim + model.head_dim)
    return model.hidden * (3 * _FP32 + 2 * element) + 2 * mixed * element


def _expert_workspace(scenario: Scenario, worker: Worker, load: Load) -> float:
    """Gradients of a layer's outputs (once more in fp32), products and inputs by pair, and those of
    the weights, which come as whole stacks."""
    model, element = scenario.model, scenario.experts.element_bytes
    pair = model.hidden * (_FP32 + 2 * element) + 3 * model.expert_width * element
    again = 0.0
    if scenario.recomputes(Side.EXPERT):
        pair += expert_activation_bytes(model, element)
        again = load.rows * fused_norm_bytes(model, element) * scenario.layout.fused_residual
    stacks = scenario.expert_parts[worker.rank] * parameters.expert_parameters(model)
    if scenario.shared_with_experts:
        stacks += parameters.shared_parameters(model)
    return load.pairs * pair + again + stacks * element


def _head(scenario: Scenario, worker: Worker) -> float:
    """Logarithms of the logits, their gradient and one copy, in fp32, and the head's gradient as it
    is computed.

    Where logits come in chunks, the head's gradient is summed over them in fp32, and scaled in the
    backward, when there are none."""
    if scenario.layout.head not in _roles(scenario, worker):
        return 0.0
    model, element = scenario.model, scenario.attention.element_bytes
    exact, tokens = max(_FP32, element), scenario.tokens[worker.rank]
    matrix, at_once = parameters.matrix_of_vocabulary(model), min(tokens, scenario.head_tokens)
    logits = at_once * model.vocab_size * 3 * exact
    if at_once == tokens:
        return logits + matrix * element
    return matrix * (exact + element) + max(logits, matrix * exact)


def _headrooms(scenario: Scenario, worker: Worker, sizes: SlotSizes) -> tuple[float, float]:
    """What the peak, and the worst case, take above the expected load."""
    if all(role.side is not Side.EXPERT for role in _roles(scenario, worker)):
        return 0.0, 0.0
    usual, peak, worst = (
        _by_load(scenario, worker, sizes, load) for load in (sizes.load(0), sizes.peak, sizes.worst)
    )
    return peak - usual, worst - usual


def _by_load(scenario: Scenario, worker: Worker, sizes: SlotSizes, load: Load) -> float:
    """What `load` takes, from its rows to the backward of its layer."""
    kinds = (SlotKind.ROWS, SlotKind.OUTPUTS, SlotKind.SAVED)
    slots = sum(sizes.expert_bytes(kind, load) for kind in kinds)
    return slots + _expert_workspace(scenario, worker, load)
