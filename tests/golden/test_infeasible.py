"""What is said of ten requests that a cluster of five nodes cannot hold."""

import time
from collections.abc import Callable

from disagmoe.cluster.bundles import cluster_bundles, filled
from disagmoe.cluster.explain import infeasible
from disagmoe.cluster.matching import all_placed, in_total
from disagmoe.cluster.nearest import nearest_fit
from tests.ray.nodes import CPUS, GPUS_OF_FIRST, ROLES
from tests.unit.cluster.infeasible import REQUESTS, the_five


def test_infeasible_requests(golden: Callable[[str, str], None]) -> None:
    nodes = the_five(CPUS, GPUS_OF_FIRST, ROLES)
    texts = []
    for request in REQUESTS:
        began_s = time.process_time()
        config = filled(request.config, nodes)
        asked = cluster_bundles(config)
        assert not all_placed(asked, nodes, in_total), request.name
        message = infeasible(asked, nodes, nearest_fit(config, nodes))
        assert time.process_time() - began_s < 2, request.name
        texts.append(f"# {request.name}: {' '.join(request.sets)}\n{message}\n")
    assert len(texts) == 10
    golden("infeasible.txt", "\n".join(texts))
