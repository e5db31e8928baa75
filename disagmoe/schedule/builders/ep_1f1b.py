"""Expert parallelism as it is common: attention and experts on the same workers, every all-to-all
waited for where it stands.

With one group this is gradient accumulation over micro-batches, with more an interleaved pipeline
of one layer per chunk in one-forward-one-backward order (Megatron-LM, arXiv:2104.04473).
"""

from disagmoe.schedule.builders.policies import backward_first
from disagmoe.schedule.costs import OpCosts
from disagmoe.schedule.ir import ProgramSpec
from disagmoe.schedule.timeline import Timeline, simulate


def ep_1f1b(spec: ProgramSpec, costs: OpCosts, in_flight: int) -> Timeline:
    """Backward first, and nothing else during an all-to-all; one micro-batch at a time where there
    is no pipeline to fill."""
    depth = 1 if spec.layout.groups == 1 else in_flight
    return simulate(spec, costs, backward_first, depth, exposed_exchanges=True)
