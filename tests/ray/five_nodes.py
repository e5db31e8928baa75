"""A Ray cluster of five nodes and a head on this machine, with a job server."""

import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from disagmoe.cluster.environment import environment, ray_variables

ROLES: tuple[dict[str, float], ...] = (
    {"attention_node": 1, "accelerator_type:H100": 1},
    {"attention_node": 1},
    {"expert_node": 1},
    {"expert_node": 1},
    {"attention_node": 1, "expert_node": 1},
)
CPUS = 2
GPUS_OF_FIRST = 2


@dataclass(frozen=True, slots=True)
class FiveNodes:
    """The cluster, as a user knows it."""

    address: str
    jobs_address: str
    variables: dict[str, str]
    """What a process needs to join it."""


@contextmanager
def five_nodes(package: str) -> Iterator[FiveNodes]:
    """Start the cluster, whose processes find the package in the folder `package`; end it."""
    with tempfile.TemporaryDirectory(prefix="dm5", dir="/tmp") as folder:
        variables = {**ray_variables(threads=1), "RAY_TMPDIR": folder, "PYTHONPATH": package}
        with environment(variables):
            # reads RAY_TMPDIR when it is imported
            from ray.cluster_utils import Cluster

            port = _free_port()
            head = {
                "num_cpus": CPUS,
                "include_dashboard": True,
                "dashboard_port": port,
            }
            cluster = Cluster(initialize_head=True, head_node_args=head)
            try:
                for index, role in enumerate(ROLES):
                    gpus = GPUS_OF_FIRST if index == 0 else 0
                    cluster.add_node(wait=False, num_cpus=CPUS, num_gpus=gpus, resources=role)
                cluster.wait_for_nodes()
                yield FiveNodes(cluster.address, f"http://127.0.0.1:{port}", variables)
            finally:
                cluster.shutdown()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
