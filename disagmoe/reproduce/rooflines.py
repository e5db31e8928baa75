"""Both sides under their roofs before and after the split, as in the paper's figure 9.

Intensity is FLOPs of a token and layer over the bytes that one direction carries for it, forward
and backward. A side's compute roof is what its kernels reach; its network roof rises with the
network that a worker has: one card before, `side / workers` cards after the split.
"""

from dataclasses import dataclass

from disagmoe.costs import flops
from disagmoe.costs.network import network_bytes_per_s
from disagmoe.costs.wire import payload_bytes
from disagmoe.reproduce.outcome import balanced, split_times
from disagmoe.reproduce.setting import Setting, Split, even
from disagmoe.schedule.costs import OpCosts
from disagmoe.schedule.ir import SlotKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One side of a pair; rates are per worker and second."""

    side: str
    when: str
    intensity: float
    """FLOPs per byte."""
    compute: float
    """FLOPs that kernels reach."""
    network: float
    """Bytes that its cards carry each way."""

    @property
    def attained(self) -> float:
        """FLOPs under both roofs."""
        return min(self.compute, self.intensity * self.network)


def points(setting: Setting) -> tuple[Split, list[Point]]:
    """The division with the lowest highest roof, and both sides before and after it."""
    split = balanced(setting)
    times = split_times(setting, even(setting))
    costs, scenario, model = times.op_costs(), times.scenario, setting.model
    rows = sum(payload_bytes(scenario, kind).row for kind in (SlotKind.ROWS, SlotKind.DOUTPUTS))
    nbytes = model.top_k * rows
    work = _work(setting)
    seconds = _seconds(costs)
    card = network_bytes_per_s(scenario.attention, scenario, of_experts=False)
    made = []
    for side, workers in (("attention", split.attention), ("experts", split.experts)):
        for when, cards in (("before", 1.0), ("after", setting.side / workers)):
            made.append(
                Point(
                    side=side,
                    when=when,
                    intensity=work[side] / nbytes,
                    compute=work[side] * setting.length / seconds[side],
                    network=cards * card,
                )
            )
    return split, made


def _work(setting: Setting) -> dict[str, float]:
    """Hardware FLOPs of a token and layer, forward and backward."""
    model = setting.model
    scores = flops.scores(model, setting.length, model.window_of(0))
    dense = flops.projections(model) + flops.router(model)
    return {
        "attention": 3 * dense + (1 + flops.flash_backward_ratio(model)) * scores,
        "experts": 3.0 * flops.routed(model),
    }


def _seconds(costs: OpCosts) -> dict[str, float]:
    """Of one sequence on one worker, as in equal groups."""
    return {
        "attention": costs.attn_fwd + costs.attn_bwd,
        "experts": costs.experts_fwd + costs.experts_bwd,
    }
