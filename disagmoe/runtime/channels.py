"""Every channel that a run opens, in the one order in which all workers open them."""

from disagmoe.schedule.ir import ProgramSpec
from disagmoe.schedule.layout import Channel, Group, Side
from disagmoe.transport.base import ChannelSpec

WORLD = "world"


def counts_name(channel: Channel) -> str:
    """Name of the small channel on which the row counts of `channel` travel."""
    return f"{channel}.counts"


def mesh_name(group: Group) -> str:
    """Name of the channel on which the workers of an attention role sum their gradients."""
    return f"{group}.mesh"


def channel_specs(spec: ProgramSpec) -> list[ChannelSpec]:
    """All one-way channels with their count channels, the attention groups' meshes, the world."""
    layout = spec.layout

    def names(role: Group) -> tuple[str, ...]:
        return tuple(str(worker) for worker in layout.members(layout.host(role)))

    specs = []
    for channel in layout.channels():
        ends = (names(channel.source), names(channel.target))
        if spec.sends_counts(channel):
            specs.append(ChannelSpec(counts_name(channel), *ends))
        specs.append(ChannelSpec(str(channel), *ends))
    for role in layout.roles:
        if role.side is Side.ATTENTION and layout.size(role) > 1:
            specs.append(ChannelSpec(mesh_name(role), names(role), names(role)))
    everyone = tuple(str(worker) for worker in layout.workers)
    specs.append(ChannelSpec(WORLD, everyone, everyone))
    return specs
