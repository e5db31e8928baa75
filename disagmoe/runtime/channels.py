"""Every channel that a run opens, in the one order in which all workers open them."""

from disagmoe.runtime.parameters import SegmentKind
from disagmoe.schedule.ir import ProgramSpec
from disagmoe.schedule.layout import Channel, Group, Layout, Side, Worker, ring_prefix
from disagmoe.transport.base import ChannelSpec

WORLD = "world"


def channel_name(channel: Channel, ring: int) -> str:
    """Name of `channel` in one ring."""
    return f"{ring_prefix(ring)}{channel}"


def counts_name(channel: Channel, ring: int) -> str:
    """Name of the small channel on which the row counts of `channel` travel."""
    return f"{channel_name(channel, ring)}.counts"


def choices_spec(spec: ProgramSpec, role: Group, ring: int) -> ChannelSpec:
    """The channel on which an attention role sums how often experts were chosen: one for each
    ring, or one for all where the counts of a whole step are summed. Its one worker needs none."""
    layout = spec.layout
    rings = range(layout.rings) if spec.counts_of_step else (ring,)
    members = tuple(name for one in rings for name in _names(layout, role, one))
    return ChannelSpec(f"{ring_prefix(rings[0])}{role}.choices", members, members, mesh=True)


def replicas_name(kind: SegmentKind, worker: Worker) -> str:
    """Name of the channel among all workers that hold the same parameters as `worker`."""
    group = worker.group.index
    match kind:
        case SegmentKind.ATTENTION:
            return f"attention{group}.replicas"
        case SegmentKind.SHARED:
            return f"shared{group}.replicas"
        case SegmentKind.SHARED_EXPERTS:
            return f"shared_experts{group}.replicas"
        case SegmentKind.EXPERTS:
            return f"experts{group}.{worker.rank}.replicas"


def replicas(kind: SegmentKind, worker: Worker, layout: Layout) -> tuple[Worker, ...]:
    """All workers that hold the same parameters of `kind` as `worker`, which holds some: in rank
    order, ring after ring."""
    index = worker.group.index
    attention, experts = Group(Side.ATTENTION, index), Group(Side.EXPERT, index)
    found: list[Worker] = []
    for ring in range(layout.rings):
        match kind:
            case SegmentKind.ATTENTION:
                found += layout.members(layout.host(attention), ring)
            case SegmentKind.SHARED:
                found += layout.members(layout.host(attention), ring)
                found += layout.members(layout.host(experts), ring)
            case SegmentKind.SHARED_EXPERTS:
                found += layout.members(layout.host(experts), ring)
            case SegmentKind.EXPERTS:
                found.append(Worker(layout.host(experts), worker.rank, ring))
    return tuple(dict.fromkeys(found))


def channel_specs(spec: ProgramSpec, *, shared_with_experts: bool = False) -> list[ChannelSpec]:
    """All one-way channels with their count channels, those of the sums, and the world;
    `shared_with_experts` says where shared experts are."""
    layout = spec.layout
    specs: list[ChannelSpec] = []
    for ring in range(layout.rings):
        for channel in layout.channels():
            ends = (_names(layout, channel.source, ring), _names(layout, channel.target, ring))
            if spec.sends_counts(channel):
                specs.append(ChannelSpec(counts_name(channel, ring), *ends, on_host=True))
            specs.append(ChannelSpec(channel_name(channel, ring), *ends))
        specs += _choices_specs(spec, ring)
    specs += _replica_specs(layout, shared_with_experts)
    everyone = tuple(str(worker) for worker in layout.workers)
    specs.append(ChannelSpec(WORLD, everyone, everyone, on_host=True))
    return specs


def _names(layout: Layout, role: Group, ring: int) -> tuple[str, ...]:
    return tuple(str(worker) for worker in layout.members(layout.host(role), ring))


def _choices_specs(spec: ProgramSpec, ring: int) -> list[ChannelSpec]:
    """Channels of the sums that begin with `ring`."""
    if not spec.sums_counts or (spec.counts_of_step and ring > 0):
        return []
    roles = [role for role in spec.layout.roles if role.side is Side.ATTENTION]
    found = [choices_spec(spec, role, ring) for role in roles]
    return [one for one in found if len(one.sources) > 1]


def _replica_specs(layout: Layout, shared_with_experts: bool) -> list[ChannelSpec]:
    specs: dict[str, ChannelSpec] = {}
    for worker in layout.workers:
        for kind in held_kinds(layout, worker, shared_with_experts=shared_with_experts):
            members = tuple(str(peer) for peer in replicas(kind, worker, layout))
            if len(members) > 1:
                name = replicas_name(kind, worker)
                specs[name] = ChannelSpec(name, members, members, mesh=True)
    return list(specs.values())


def held_kinds(
    layout: Layout, worker: Worker, *, shared_with_experts: bool = False
) -> list[SegmentKind]:
    """The segments that `worker` holds."""
    sides = {role.side for role in layout.roles_of(worker.group)}
    kinds = [SegmentKind.ATTENTION] if Side.ATTENTION in sides else []
    kinds += [SegmentKind.SHARED] if layout.fused_residual else []
    if Side.EXPERT in sides:
        kinds += [SegmentKind.SHARED_EXPERTS] if shared_with_experts else []
        kinds += [SegmentKind.EXPERTS]
    return kinds
