"""Why workers have no place, in words: Ray itself cannot say why a placement group waits."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from disagmoe.cluster.bundles import SIDE_NAMES, Bundle
from disagmoe.cluster.matching import Resources, in_total, most_placed, now_free
from disagmoe.cluster.nodes import ACCELERATOR, NODE_RESOURCES, Holder, Node

_MOST_LINES = 24
_MOST_NAMES = 4
_OURS = ("CPU", "GPU", *NODE_RESOURCES.values())


def infeasible(asked: Sequence[Bundle], nodes: Sequence[Node], nearest: Sequence[str]) -> str:
    """Say what was asked, what each node has, and what would fit, by settings, if any."""
    return "\n".join(
        [
            f"this cluster cannot hold the run: {_short_of(asked, nodes)}. Asked, one node each:",
            *_wishes(asked),
            "Nodes have, in use or not:",
            *_by_content(nodes, lambda node: f"{_has(node)}; {_use(node, asked)}"),
            _way_out(asked, nodes, nearest),
        ]
    )


def busy(
    asked: Sequence[Bundle], nodes: Sequence[Node], holders: Mapping[str, Sequence[Holder]]
) -> str:
    """Say which nodes would do if they were free, and who holds them."""
    wanted = [node for node in nodes if _takes(node, asked, in_total)]
    used = [node for node in wanted if not _takes(node, asked, now_free)]
    return "\n".join(
        [
            f"nodes for this run are in use: free are {_counts(asked, nodes, now_free)}. Asked, "
            "one node each:",
            *_wishes(asked),
            "In use:",
            *_by_content(used, lambda node: f"{_shares(node)}; {_held(holders.get(node.id, ()))}"),
        ]
    )


def timed_out(asked: Sequence[Bundle], waited_s: float) -> str:
    """Say that Ray has not given nodes that seem to be free."""
    return "\n".join(
        [
            f"Ray has not given the nodes of this run within {waited_s:.0f} s, although they seem "
            "to be free; its log gcs_server.out on the head may say why. Asked, one node each:",
            *_wishes(asked),
        ]
    )


def _short_of(asked: Sequence[Bundle], nodes: Sequence[Node]) -> str:
    if any(bundle.side is None for bundle in asked):
        return "this machine has too little for its workers"
    return f"it has {_counts(asked, nodes, in_total)}"


def _counts(asked: Sequence[Bundle], nodes: Sequence[Node], resources: Resources) -> str:
    """For example `2 of 3 nodes for attention and 1 of 1 nodes for experts`."""
    found = most_placed(asked, nodes, resources)
    wanted: dict[str, list[int]] = {}
    for index, bundle in enumerate(asked):
        wanted.setdefault(_side(bundle), []).append(index)
    return " and ".join(
        f"{sum(index in found for index in indices)} of {len(indices)} nodes for {side}"
        for side, indices in wanted.items()
    )


def _wishes(asked: Sequence[Bundle]) -> Iterator[str]:
    """One line per kind of bundle; there are few kinds, and may be many bundles."""
    kinds: dict[str, list[Bundle]] = {}
    for bundle in asked:
        kinds.setdefault(str(bundle), []).append(bundle)
    for kind, bundles in kinds.items():
        names = [_workers(bundle.workers) for bundle in bundles]
        more = f"; and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        yield f"  {len(bundles)} x {kind} ({'; '.join(names[:_MOST_NAMES])}{more})"


def _workers(names: Sequence[str]) -> str:
    if len(names) <= _MOST_NAMES:
        return " ".join(names)
    return f"{names[0]} to {names[-1]}"


def _by_content(nodes: Sequence[Node], describe: Callable[[Node], str]) -> Iterator[str]:
    """One line for all nodes of which the same is to be said."""
    alike: dict[str, list[Node]] = {}
    for node in nodes:
        alike.setdefault(describe(node), []).append(node)
    lines = [f"  {_names(same)}: {text}" for text, same in alike.items()]
    yield from lines[:_MOST_LINES]
    if len(lines) > _MOST_LINES:
        yield f"  and {len(lines) - _MOST_LINES} other kinds of nodes"


def _names(nodes: Sequence[Node]) -> str:
    more = f" and {len(nodes) - _MOST_NAMES} more" if len(nodes) > _MOST_NAMES else ""
    return ", ".join(map(str, nodes[:_MOST_NAMES])) + more


def _has(node: Node) -> str:
    parts = [f"{name} {node.total[name]:g}" for name in _OURS if node.total.get(name)]
    return ", ".join(parts + [f"accelerator {kind}" for kind in node.accelerators]) or "nothing"


def _shares(node: Node) -> str:
    return ", ".join(
        f"{name} {node.free.get(name, 0):g} of {node.total[name]:g} free"
        for name in _OURS
        if node.total.get(name)
    )


def _held(holders: Sequence[Holder]) -> str:
    if not holders:
        return "held by actors or tasks of others"
    return f"held by {', '.join(map(str, holders))}"


def _takes(node: Node, asked: Sequence[Bundle], resources: Resources) -> bool:
    return any(bundle.fits(node, resources(node)) for bundle in asked)


def _use(node: Node, asked: Sequence[Bundle]) -> str:
    """What `node` is good for, or what it lacks for what it is meant for."""
    kinds = list({str(bundle): bundle for bundle in asked}.values())
    fit = [bundle for bundle in kinds if bundle.fits(node, node.total)]
    if fit:
        return f"takes {' or '.join(dict.fromkeys(_side(bundle) for bundle in fit))}"
    meant = [bundle for bundle in kinds if bundle.is_meant_for(node)]
    if not meant:
        missing = dict.fromkeys(b.known_by for b in kinds if b.side is not None)
        return f"offers no {' and no '.join(missing)}" if missing else "is another machine"
    reasons = dict.fromkeys(f"{lack} for {_side(b)}" for b in meant for lack in _lacks(node, b))
    return f"has too little: {', '.join(reasons)}"


def _side(bundle: Bundle) -> str:
    return "all workers" if bundle.side is None else SIDE_NAMES[bundle.side]


def _lacks(node: Node, bundle: Bundle) -> Iterator[str]:
    for name, need in bundle.lacking(node.total).items():
        if name.startswith(ACCELERATOR):
            kinds = " and ".join(node.accelerators) or "none that Ray knows"
            yield f"accelerator {kinds} instead of {bundle.accelerator}"
        else:
            yield f"{name} {node.total.get(name, 0):g} of {need:g}"


def _way_out(asked: Sequence[Bundle], nodes: Sequence[Node], nearest: Sequence[str]) -> str:
    ways = []
    if nearest:
        ways.append(f"the nearest config that fits has {', '.join(nearest)}")
    starts = [
        f"start {count} more node{'s' if count > 1 else ''} with "
        f"`ray start --address HEAD:6379 {option}`"
        for option, count in _nodes_missing(asked, nodes).items()
    ]
    if starts:
        hint = "if they have yet to join, wait for them: --set cluster.wait_s=600"
        ways.append(f"{' and '.join(starts)}; {hint}")
    if not ways:
        ways.append(
            "ask for less per node, or start nodes that have it"
            if any(bundle.side is not None for bundle in asked)
            else 'give Ray more of this machine, or use cluster.mode = "cluster"'
        )
    return "; or ".join(ways)


def _nodes_missing(asked: Sequence[Bundle], nodes: Sequence[Node]) -> Mapping[str, int]:
    """How many nodes are too few, whatever else they have, by the option of `ray start` that makes
    one; a node that is for two sides is one node all the same."""
    bare = [replace(bundle, cpus=0.0, gpus=0.0, accelerator="") for bundle in asked]
    found = most_placed(bare, nodes, in_total)
    return Counter(
        f"--labels {bundle.label}"
        if bundle.label
        else f"--resources '{{\"{bundle.known_by}\": 1}}'"
        for index, bundle in enumerate(bare)
        if index not in found and bundle.side is not None
    )
