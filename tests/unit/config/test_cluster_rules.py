"""Rules between settings of the machines, each by its message, and what they let pass."""

import pytest

from disagmoe.config.cluster_rules import CLUSTER_RULES
from disagmoe.config.load import override
from disagmoe.config.run import RunConfig
from disagmoe.config.starter import STARTER
from disagmoe.config.tomlread import apply_set
from disagmoe.errors import ConfigError
from disagmoe.schedule.from_config import programs_for

ON_CLUSTER = "cluster.mode=cluster"
LOCAL = (
    'cluster.mode = "local" keeps all workers on one machine; leave it out, or use mode = "cluster"'
)

REFUSED = [
    (
        ["cluster.address=head"],
        'cluster.address = "head"; expected HOST:PORT, "auto", "local" or ""',
    ),
    (
        ["cluster.address=ray://head:10001"],
        'cluster.address = "ray://head:10001"; expected HOST:PORT, "auto", "local" or "" '
        "(it is the address of the head's GCS, port 6379 if not chosen otherwise)",
    ),
    (
        [ON_CLUSTER, "cluster.address=local"],
        'cluster.mode = "cluster" never starts a Ray, but cluster.address = "local" asks for one; '
        'name a cluster by HOST:PORT, or use mode = "local"',
    ),
    (["cluster.attention.workers_per_node=2"], f"cluster.attention is given, but {LOCAL}"),
    (["cluster.expert.accelerator=H800"], f"cluster.expert is given, but {LOCAL}"),
    (['cluster.nic_map={"A0.0" = ["eth0"]}'], f"cluster.nic_map is given, but {LOCAL}"),
    (
        [ON_CLUSTER, "parallel.schedule=ep_1f1b", "cluster.expert.workers_per_node=1"],
        'cluster.expert is given, but parallel.schedule = "ep_1f1b" has no workers for experts '
        "alone; cluster.attention is for all of them",
    ),
    (
        [ON_CLUSTER, "cluster.device=cpu", "cluster.attention.accelerator=H800"],
        'cluster.attention.accelerator = "H800", but cluster.device = "cpu"; leave it out, or use '
        'device "cuda"',
    ),
    (
        [ON_CLUSTER, "cluster.device=cpu", "cluster.expert.gpus_per_node=8"],
        'cluster.expert.gpus_per_node = 8, but cluster.device = "cpu"; leave it out, or use device '
        '"cuda"',
    ),
    (
        [ON_CLUSTER, "cluster.expert.workers_per_node=8", "cluster.expert.gpus_per_node=4"],
        "cluster.expert.gpus_per_node = 4 is less than workers_per_node = 8, and each worker needs "
        "a GPU; use 8 or more, or 0 for as many as have workers",
    ),
    (["cluster.expert.label=pool=b"], f"cluster.expert is given, but {LOCAL}"),
    (
        [ON_CLUSTER, "cluster.attention.label=pool"],
        'cluster.attention.label = "pool"; expected KEY=VALUE, as in `ray start --labels`, such as '
        "pool=a",
    ),
    (
        [ON_CLUSTER, "cluster.expert.label=pool=!b"],
        'cluster.expert.label = "pool=!b"; expected KEY=VALUE, as in `ray start --labels`, such as '
        "pool=a",
    ),
    (
        [ON_CLUSTER, 'cluster.nic_map={"A0.2" = ["eth0"]}'],
        "cluster.nic_map names A0.2, which is no worker of this run; its workers are A0.0, A0.1, "
        "F0.0, F0.1",
    ),
    (
        [ON_CLUSTER, "parallel.groups=2", 'cluster.nic_map={"x" = ["eth0"]}'],
        "cluster.nic_map names x, which is no worker of this run; its workers are A0.0, A0.1, "
        "A1.0, A1.1, ...",
    ),
    (
        [ON_CLUSTER, 'cluster.nic_map={"A0.1" = []}'],
        "cluster.nic_map gives A0.1 no device; name one, or leave A0.1 out",
    ),
    (
        [ON_CLUSTER, 'cluster.nic_map={"A0.1" = ["mlx5_0,mlx5_1"]}'],
        'cluster.nic_map gives A0.1 the device "mlx5_0,mlx5_1"; expected one name per text, as in '
        "/sys/class/infiniband or /sys/class/net",
    ),
]

LEGAL = [
    ["cluster.address=10.0.0.1:6379"],
    ["cluster.address=head.example.org:6379"],
    ["cluster.address='[fd00::1]:6379'"],
    ["cluster.address=auto"],
    ["cluster.address=local"],
    [
        *(ON_CLUSTER, "cluster.address=auto", "cluster.device=cuda"),
        *("cluster.attention.accelerator=H800", "cluster.expert.gpus_per_node=8"),
        *("cluster.expert.workers_per_node=8", 'cluster.nic_map={"F0.1"=["mlx5_0", "mlx5_1"]}'),
    ],
]


@pytest.mark.parametrize(("sets", "message"), REFUSED)
def test_refused(sets: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        override(STARTER, sets)
    assert caught.value.problems == [message]


def test_every_rule_is_refused_by_a_case_above() -> None:
    broken = set()
    for sets, _ in REFUSED:
        tree = STARTER.model_dump()
        for assignment in sets:
            apply_set(tree, assignment)
        config = RunConfig.model_validate(tree)
        broken |= {rule.__name__ for rule in CLUSTER_RULES if list(rule(config))}
    assert broken == {rule.__name__ for rule in CLUSTER_RULES}


@pytest.mark.parametrize("sets", LEGAL)
def test_legal(sets: list[str]) -> None:
    override(STARTER, sets)


def test_rules_are_silent_about_a_map_that_is_wrong_itself() -> None:
    with pytest.raises(ConfigError) as caught:
        override(STARTER, [ON_CLUSTER, 'cluster.nic_map={"X" = 3}', "parallel.rings=0"])
    assert [
        problem.partition(" is ")[0].partition(";")[0] for problem in caught.value.problems
    ] == [
        "parallel.rings = 0",
        "cluster.nic_map.X = 3",
    ]


@pytest.mark.parametrize("schedule", ["af_pipe", "ep_overlap"])
def test_workers_have_the_names_of_the_layout(schedule: str) -> None:
    sets = ["parallel.rings=2", "parallel.groups=2", f"parallel.schedule={schedule}"]
    config = override(STARTER, sets)
    layout = programs_for(config).spec.layout
    assert config.parallel.worker_names == [str(worker) for worker in layout.workers]
