"""How many expert workers share a host, and what is refused because it cannot be known."""

import pytest

from disagmoe.config.hosts import unequal_hosts, workers_per_host
from disagmoe.config.load import override
from disagmoe.config.starter import STARTER
from disagmoe.config.trained import refuse_only_planned
from disagmoe.errors import ConfigError

NODE = ["parallel.dedupe=node", "parallel.expert_workers=4"]
CLUSTER = ["cluster.mode=cluster", "cluster.address=10.0.0.1:6379"]


def config(*sets: str):
    return override(STARTER, [*NODE, *sets])


def test_the_number_is_given_asked_of_the_cluster_or_planned() -> None:
    assert workers_per_host(config()) == 8
    assert workers_per_host(config("hardware.workers_per_node=4")) == 4
    assert workers_per_host(config(*CLUSTER, "cluster.expert.workers_per_node=2")) == 2
    assert workers_per_host(config("parallel.workers_per_host=3")) == 3
    mixed = ["hardware.mixed_nodes=true", "hardware.workers_per_node=4"]
    assert workers_per_host(config(*mixed, "parallel.attention_workers=4")) == 2


def test_one_worker_on_each_host_is_no_second_hop() -> None:
    assert workers_per_host(config("hardware.workers_per_node=1")) == 0
    assert workers_per_host(config("parallel.dedupe=rank")) == 0


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (
            ["parallel.dedupe=rank", "parallel.workers_per_host=2"],
            "parallel.workers_per_host = 2 has no effect with parallel.dedupe = "
            '"rank"; use 0, or dedupe = "node"',
        ),
        (
            [*CLUSTER, "cluster.expert.workers_per_node=4", "parallel.workers_per_host=2"],
            "parallel.workers_per_host = 2, but the cluster is asked for 4 workers on each node of "
            "experts; use 0, which takes that number",
        ),
    ],
)
def test_what_contradicts_is_refused(sets: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(*sets)
    assert str(caught.value) == message


def test_a_cluster_is_asked_for_other_hosts_than_were_given() -> None:
    found = config(*CLUSTER, "parallel.workers_per_host=8")
    refuse_only_planned(found)
    nodes = found.cluster.expert.model_copy(update={"workers_per_node": 4})
    cluster = found.cluster.model_copy(update={"expert": nodes})
    with pytest.raises(ConfigError, match="= 8, but the cluster is asked for 4 workers"):
        refuse_only_planned(found.model_copy(update={"cluster": cluster}))


def test_hosts_must_not_divide_groups_unequally() -> None:
    three = [*CLUSTER, "cluster.expert.workers_per_node=3"]
    assert unequal_hosts(config(*three)) == []
    (found,) = unequal_hosts(config(*three, "parallel.groups=2"))
    assert found == (
        'parallel.dedupe = "node" with 4 expert workers per group and 3 on each node: hosts would '
        "divide the groups unequally; use a multiple or a divisor of 4 per node"
    )
    for fits in (2, 8):
        sets = [*CLUSTER, f"cluster.expert.workers_per_node={fits}", "parallel.groups=2"]
        assert unequal_hosts(config(*sets)) == []
