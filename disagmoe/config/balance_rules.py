"""Rules about the balancing of experts."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from disagmoe.config.phrases import plural

if TYPE_CHECKING:
    from disagmoe.config.run import RunConfig


def step_is_balanced_as_one(config: "RunConfig") -> Iterator[str]:
    """With `train.loss.aux_coef` and `train.loss.aux_scope = "global"`, all micro-batches of a step
    may be in flight: the schedule does not run one by one, and neither `parallel.in_flight` nor
    `parallel.max_in_flight` allow fewer."""
    parallel, count = config.parallel, config.micro_batches
    if not config.train.loss.balances_step or count == 1:
        return
    why = (
        f'train.loss.aux_scope = "global" needs all {plural(count, "micro-batch")} of a step in '
        "flight, so that the last is routed before the first goes back"
    )
    other = 'or scope "sequence"; a larger parallel.micro_batch_size makes fewer of them'
    if parallel.one_by_one:
        yield (
            f'{why}, but parallel.schedule = "{parallel.schedule}" runs one after the other; use '
            f'"af_pipe" or "ep_overlap", {other}'
        )
        return
    for name, zero in (("in_flight", "automatic"), ("max_in_flight", "no limit")):
        depth = getattr(parallel, name)
        if 0 < depth < count:
            yield f"{why}, but parallel.{name} = {depth}; use {count}, 0 for {zero}, {other}"


BALANCE_RULES = (step_is_balanced_as_one,)
