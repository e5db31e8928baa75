"""A Ray cluster on this machine: a head with a job server, and five nodes for workers or none.

All nodes have one folder for files, though real ones have one each; where each of them unpacks the
`--working-dir` of a job, it takes it from the others. So jobs want a head that is alone.
"""

import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from disagmoe.cluster.environment import environment, ray_variables
from disagmoe.cluster.signals import sigterm_handler_kept
from disagmoe.units import MIB

CPUS = 2
GPUS_OF_FIRST = 2  # that it only claims to have
_OBJECT_STORE_BYTES = 80 * MIB  # Ray takes no less than 75
ROLES: tuple[dict[str, float], ...] = (
    {"attention_node": 1, "accelerator_type:H100": 1},
    {"attention_node": 1},
    {"attention_node": 1, "expert_node": 1},
    {"expert_node": 1},
    {"expert_node": 1},
)
"""What the nodes offer. Of two small runs at once neither can be in the way of the other, whichever
of these each is given."""
LABELS: tuple[dict[str, str], ...] = ({}, {"pool": "b"}, {}, {"pool": "a"}, {"pool": "a"})
"""Labels of the same nodes, which contradict what they offer: pool a is two nodes for experts, and
pool b one for attention."""


@dataclass(frozen=True, slots=True)
class RayNodes:
    """The cluster, as a user knows it."""

    address: str
    jobs_address: str
    variables: dict[str, str]
    """What a process needs to join it."""


@contextmanager
def ray_nodes(package: Path, roles: Sequence[dict[str, float]] = ROLES) -> Iterator[RayNodes]:
    """Start a head, and a node for each of `roles`, whose processes find the package in the folder
    `package`; end them.

    Ports that Ray would choose alike for all heads of a machine are chosen here.
    """
    with tempfile.TemporaryDirectory(prefix="dm5", dir="/tmp") as folder:
        variables = ray_variables(threads=1) | {"RAY_TMPDIR": folder, "PYTHONPATH": str(package)}
        # nodes of this process handle SIGTERM, and go on doing so when they have ended
        with environment(variables), sigterm_handler_kept():
            from ray.cluster_utils import Cluster  # reads RAY_TMPDIR when it is imported

            dashboard, agent = _free_port(), _free_port()
            small = {"num_cpus": CPUS, "object_store_memory": _OBJECT_STORE_BYTES}
            head = {
                **small,
                "include_dashboard": True,
                "dashboard_port": dashboard,
                "dashboard_agent_listen_port": agent,
            }
            cluster = Cluster(initialize_head=True, head_node_args=head)
            try:
                for index, role in enumerate(roles):
                    gpus, labels = GPUS_OF_FIRST if index == 0 else 0, LABELS[index]
                    cluster.add_node(
                        wait=False, num_gpus=gpus, resources=role, labels=labels, **small
                    )
                cluster.wait_for_nodes()
                yield RayNodes(cluster.address, f"http://127.0.0.1:{dashboard}", variables)
            finally:
                cluster.shutdown()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
