"""Which network devices each worker on a node uses: those next to its GPU, and those that idle GPUs
lend."""

from collections.abc import Mapping, Sequence

from disagmoe.actors.sysfs import Gpu, Nic, Spot
from disagmoe.errors import PlacementError

NCCL_DEVICES = "NCCL_IB_HCA"
NCCL_INTERFACE = "NCCL_SOCKET_IFNAME"
GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"

_SAME_NUMA, _SAME_HOST_BRIDGE, _SAME_SWITCH = 1, 2, 3
"""Least closeness; each bridge below the host bridge that two devices share adds 1."""


def closeness(one: Spot, other: Spot) -> int:
    """How near two devices are: 0 for nothing in common, 1 for the NUMA node, more for PCIe."""
    shared = 0
    for left, right in zip(one.pci, other.pci, strict=False):
        if left != right:
            break
        shared += 1
    if shared:
        return _SAME_HOST_BRIDGE + shared - 1
    return _SAME_NUMA if one.numa == other.numa != -1 else 0


def share_nics(
    used: Mapping[str, Gpu], idle: Sequence[Gpu], nics: Sequence[Nic]
) -> dict[str, tuple[Nic, ...]]:
    """Divide the RDMA devices among `nics` among the workers `used`, by the GPU of each.

    A device belongs to the GPUs that it is nearest to, as NCCL would choose. Where some share a
    PCIe switch with a GPU (or a host bridge, or a NUMA node), those that do not, such as those of
    storage, belong to nobody. What belongs to `idle` GPUs alone is lent to the worker nearest to
    it, of those the one with the fewest. Where nothing is known of their places, nobody has any.
    """
    gpus = [*used.values(), *idle]
    nearest = {
        nic: max((closeness(nic.spot, gpu.spot) for gpu in gpus), default=0)
        for nic in nics
        if nic.rdma
    }
    best = min(max(nearest.values(), default=0), _SAME_SWITCH)
    shares: dict[str, list[Nic]] = {worker: [] for worker in used}
    if not used or not best:
        return dict.fromkeys(used, ())
    lent = []
    for nic, least in nearest.items():
        if least < best:
            continue
        owners = [w for w, gpu in used.items() if closeness(nic.spot, gpu.spot) == least]
        for worker in owners:
            shares[worker].append(nic)
        if not owners:
            lent.append(nic)
    for nic in lent:
        distance = {w: -closeness(nic.spot, gpu.spot) for w, gpu in used.items()}
        taker = min(used, key=lambda w: (distance[w], len(shares[w])))
        shares[taker].append(nic)
    return {worker: tuple(share) for worker, share in shares.items()}


def named_nics(names: Sequence[str], nics: Sequence[Nic]) -> tuple[Nic, ...]:
    """Return the devices of `names`, each an RDMA device or an interface.

    Raises PlacementError for a name that no device has.
    """
    found = []
    for name in names:
        matching = [nic for nic in nics if name in (nic.rdma, nic.interface)]
        if not matching:
            there = ", ".join(
                dict.fromkeys(n for nic in nics for n in (nic.rdma, nic.interface) if n)
            )
            raise PlacementError(
                f"has no network device {name} with a link; it has {there or 'none'}"
            )
        found.append(matching[0])
    return tuple(found)


def socket_interface(nics: Sequence[Nic]) -> str:
    """The first network interface of `nics`; empty where none has one."""
    return next((nic.interface for nic in nics if nic.interface), "")


def rdma_list(nics: Sequence[Nic]) -> str:
    """The RDMA devices of `nics` as NCCL_IB_HCA takes them, by exact names; empty for none."""
    names = [nic.rdma for nic in nics if nic.rdma]
    return f"={','.join(names)}" if names else ""
