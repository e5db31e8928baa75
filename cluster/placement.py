"""Nodes for a run: one placement group, one bundle per node, gone with the block or the script."""

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from ray.exceptions import RayError
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from disagmoe.actors.messages import Place
from disagmoe.cluster.bundles import Bundle
from disagmoe.cluster.explain import busy, infeasible, timed_out
from disagmoe.cluster.matching import all_placed, in_total, now_free
from disagmoe.cluster.nodes import Node, read_holders, read_nodes
from disagmoe.cluster.signals import deferred
from disagmoe.errors import (
    PlacementBusy,
    PlacementError,
    PlacementInfeasible,
    PlacementTimeout,
)

log = logging.getLogger(__name__)

Say = Callable[[str], None]

_POLL_S = 0.25
"""See session.py: a longer wait would meet Ray's own look for signals."""
_LOOK_EVERY_S = 1.0
_STALE_S = 3.0
"""For so long after resources were given back Ray may still count them as used."""
_GIVE_S = 30.0
"""Longest time that Ray may take to give nodes that are free."""


@contextmanager
def placed(
    asked: Sequence[Bundle],
    name: str,
    *,
    wait_s: float = 0.0,
    say: Say = log.info,
    nearest: Callable[[Sequence[Node]], Sequence[str]] = lambda _: (),
) -> Iterator["Reservation"]:
    """Reserve a node for each of `asked`; the nodes are free again after the block, or once this
    process is dead.

    Waits for `wait_s` for nodes that others use, or that have not joined yet, and says so. Ray is
    asked for them meanwhile, so that an autoscaler can add them. `nearest` names settings that fit
    the given nodes better.

    Raises:
        PlacementInfeasible: no set of this cluster's nodes would do, all the time.
        PlacementBusy: nodes that would do were in use all the time.
        PlacementTimeout: Ray has not given nodes that seem to be free.
    """
    if not wait_s:
        _check_feasible(asked, read_nodes(), nearest)
    reservation = Reservation(asked, name, wait_s, say, nearest)
    try:
        reservation.take()
        yield reservation
    finally:
        with deferred():
            reservation.give_back()


class Reservation:
    """Nodes that are the run's own."""

    def __init__(
        self,
        asked: Sequence[Bundle],
        name: str,
        wait_s: float,
        say: Say,
        nearest: Callable[[Sequence[Node]], Sequence[str]],
    ) -> None:
        self._asked = asked
        self._name = name
        self._wait_s = wait_s
        self._say = say
        self._nearest = nearest
        self._group: PlacementGroup | None = None
        self._places: dict[str, Place] = {}

    @property
    def places(self) -> Mapping[str, Place]:
        """The place of each worker by name."""
        return dict(self._places)

    def take(self, without: frozenset[str] = frozenset()) -> None:
        """Reserve nodes other than `without`."""
        self._group = placement_group(
            [bundle.resources for bundle in self._asked],
            strategy="STRICT_SPREAD",
            name=self._name,
            bundle_label_selector=[selector(bundle, without) for bundle in self._asked],
        )
        self._await()

    def renew(self, without: frozenset[str]) -> Mapping[str, Place]:
        """Return places again after a failure: the same where their nodes are there still, else
        what Ray gives in their stead. Nodes of `without` are left if others can take their place.

        Raises PlacementError as `placed`; a node that has gone is waited for like one in use.
        """
        used = {place.node for place in self._places.values()}
        spare = [node for node in read_nodes() if node.id not in without]
        if used & without and self._would_fit(spare, used):
            self._say(f"leaves out {', '.join(node[:8] for node in sorted(used & without))}")
            self.give_back()
            self.take(without)
            return self.places
        self._await()
        return self.places

    def _would_fit(self, nodes: Sequence[Node], own: set[str]) -> bool:
        """Whether what is free on `nodes`, or this run's own, is enough."""
        return all_placed(
            self._asked, nodes, lambda node: node.total if node.id in own else node.free
        )

    def _await(self) -> None:
        assert self._group is not None
        _wait(self._group, self._asked, self._wait_s, self._say, self._nearest)
        self._places = _places(self._group, self._asked, read_nodes())

    def give_back(self) -> None:
        """Let others have the nodes."""
        if self._group is not None:
            _remove(self._group)
        self._group = None


def selector(bundle: Bundle, without: frozenset[str]) -> dict[str, str]:
    """Labels, in Ray's words, that the node of `bundle` must have so as not to be of `without`."""
    if bundle.node or not without:
        return bundle.labels
    return {**bundle.labels, "ray.io/node-id": f"!in({','.join(sorted(without))})"}


def _check_feasible(
    asked: Sequence[Bundle],
    nodes: Sequence[Node],
    nearest: Callable[[Sequence[Node]], Sequence[str]],
) -> None:
    if not all_placed(asked, nodes, in_total):
        raise PlacementInfeasible(infeasible(asked, nodes, nearest(nodes)))


def _wait(
    group: PlacementGroup,
    asked: Sequence[Bundle],
    wait_s: float,
    say: Say,
    nearest: Callable[[Sequence[Node]], Sequence[str]],
) -> None:
    began_s = looked_s = time.monotonic()
    said = ""
    while not group.wait(_POLL_S):
        now_s = time.monotonic()
        if now_s < looked_s + _LOOK_EVERY_S:
            continue
        looked_s, waited_s = now_s, now_s - began_s
        nodes = read_nodes()
        text = ""
        if not all_placed(asked, nodes, in_total):  # a node may have gone, or not be there yet
            if waited_s >= wait_s:
                raise PlacementInfeasible(
                    f"{infeasible(asked, nodes, nearest(nodes))}{_waited(wait_s)}"
                )
            text = infeasible(asked, nodes, ())
        elif not all_placed(asked, nodes, now_free) and waited_s >= _STALE_S:
            text = busy(asked, nodes, read_holders())
            if waited_s >= wait_s:
                raise PlacementBusy(f"{text}\n{_advice(wait_s)}")
        if text and text != said:
            say(f"{text}\nwaiting for nodes for at most {wait_s:.0f} s (cluster.wait_s)")
            said = text
        if waited_s >= wait_s + _GIVE_S:
            raise PlacementTimeout(timed_out(asked, waited_s))


def _advice(waited_s: float) -> str:
    if waited_s:
        return f"waited for {waited_s:g} s (cluster.wait_s); end what holds them, or wait longer"
    return "end what holds them, or wait for them: --set cluster.wait_s=3600"


def _waited(waited_s: float) -> str:
    if waited_s:
        return f"\nwaited for {waited_s:g} s (cluster.wait_s) for nodes to join"
    return ""


def _places(
    group: PlacementGroup, asked: Sequence[Bundle], nodes: Sequence[Node]
) -> dict[str, Place]:
    node_of = placement_group_table(group)["bundles_to_node_id"]
    given = [node_of[index] for index in range(len(asked))]
    check_disjoint(asked, given, nodes)
    by_id = {node.id: node for node in nodes}
    mine = [by_id[node] for node in given]
    return {
        worker: Place(
            node=node.id,
            host=node.host,
            cpus=int(node.total.get("CPU", 0)) // len(bundle.workers),
            all_gpus=int(bundle.gpus) == node.gpus,
            strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
        )
        for bundle, index in zip(asked, by_address(asked, mine), strict=True)
        for node in (mine[index],)
        for worker in bundle.workers
    }


def check_disjoint(asked: Sequence[Bundle], given: Sequence[str], nodes: Sequence[Node]) -> None:
    """Raise PlacementError unless each of `asked` was given a node of its own that fits it, by id.

    Ray promises that; a run whose sides share a node would be slow without a word.
    """
    by_id = {node.id: node for node in nodes}
    lost = [node for node in given if node not in by_id]
    if lost:
        raise PlacementError(f"nodes have gone while the run was placed: {', '.join(lost)}")
    for index, (bundle, node) in enumerate(zip(asked, given, strict=True)):
        if not bundle.fits(by_id[node], by_id[node].total):
            raise PlacementError(f"Ray has put {bundle} on {by_id[node]}, which does not have that")
        if node in given[:index]:
            other = asked[given.index(node)]
            raise PlacementError(
                f"Ray has put {' '.join(other.workers)} and {' '.join(bundle.workers)} on the same "
                f"node, {by_id[node]}"
            )


def _remove(group: PlacementGroup) -> None:
    try:
        remove_placement_group(group)
    except RayError:  # the cluster has gone, and the group with it
        log.warning("the placement group could not be removed", exc_info=True)


def by_address(asked: Sequence[Bundle], given: Sequence[Node]) -> list[int]:
    """Return for each of `asked` the bundle, by index, that its workers take, when bundle i is on
    node `given[i]`.

    Bundles that ask for the same are exchanged so that workers follow their hosts' addresses,
    whichever way Ray has placed them: a run that starts again finds its ranks where they were.
    """
    alike: dict[tuple[str, int], list[int]] = {}
    for index, bundle in enumerate(asked):
        alike.setdefault((str(bundle), len(bundle.workers)), []).append(index)
    taken = list(range(len(asked)))
    for indices in alike.values():
        ordered = sorted(indices, key=lambda index: _order(given[index]))
        for place, index in zip(indices, ordered, strict=True):
            taken[place] = index
    return taken


def _order(node: Node) -> tuple[list[int], str, str]:
    """Address by number, so that 10.0.0.9 comes before 10.0.0.10."""
    return [int(part) for part in re.findall(r"\d+", node.host)], node.host, node.id
