"""How one transfer becomes groups of NCCL, none of which is too large for it."""

from collections.abc import Iterable, Mapping

MOST_CALLS = 256
"""Of sends and receives in a group. NCCL does a larger one by several kernels, and the ends of a
message may fall into different ones of them, so that it hangs (pytorch/pytorch 174942)."""


def divide(
    me: str,
    targets: Iterable[str],
    sources: Iterable[str],
    ranks: Mapping[str, int],
    most_calls: int,
) -> list[tuple[list[str], list[str]]]:
    """Return the groups in which `me` sends to `targets` and receives from `sources`, in order:
    whom it sends to and whom it receives from in each.

    The distance from the source's rank to the target's, round the ring of all ranks, decides on the
    group: both ends of a message come to the same one without asking, and a worker has one message
    at most to send and one to receive at each distance. Nobody can wait in a circle, as all workers
    go through the groups in one order.
    """
    groups: dict[int, tuple[list[str], list[str]]] = {}

    def group(source: str, target: str) -> tuple[list[str], list[str]]:
        distance = (ranks[target] - ranks[source]) % len(ranks)  # from 1 on
        return groups.setdefault((distance - 1) // (most_calls // 2), ([], []))

    for target in targets:
        group(me, target)[0].append(target)
    for source in sources:
        group(source, me)[1].append(source)
    return [groups[number] for number in sorted(groups)]
