"""What others would need for the same step, in closed form on the same costs.

Expert parallelism over the M = N workers of a group, groups as pipeline stages. Per layer and
micro-batch a and f are attention's and experts' compute and c is one all-to-all, forward; a', f'
and c' backward. Every opponent has a layer per chunk (v = layers per stage), which is its best
case, and n micro-batches, whose head one stage computes besides:

- `megatron`: interleaved 1F1B (arXiv:2104.04473), all-to-alls exposed:
  n L/p (F + B) + (p - 1) (F + B + 2 p2p), with F = a + f + 2c and B likewise;
- `tutel`: experts in d of 1, 2, 4, 8 chunks, all-to-alls beside them (arXiv:2206.03382): F = a +
  c/d + max(2c - 2c/d, f_d) + c/d, f_d the experts' time in d calls;
- `comet`: tiles (arXiv:2502.19811): F = a + max(2c, f S/(S - s)) + 2c/16, with s = 20 of S
  multiprocessors for communication, between the 18 and 46 that it finds best;
- `dualpipe`: n L/p max(a + f + a' + f', 2c + 2c') + (p/2 - 1) (pair + B - 3W) with p at least 2
  (README of github.com/deepseek-ai/DualPipe), compute slowed by 20 multiprocessors;
- `overlapped`: a Megatron of today, with the all-to-alls of one micro-batch behind another's
  compute, and its own fill.

With rows once to each host both hops of an all-to-all go on at once, chunk by chunk, as in DeepEP
(github.com/deepseek-ai/DeepEP), and the kernels that transfer hand rows out and add them up, so
that c is the longer hop and nothing else: their best case again.
"""

from dataclasses import dataclass

from disagmoe.costs.ops import ExpertWork, experts_forward_s
from disagmoe.costs.times import StepTimes

CHUNKS = (1, 2, 4, 8)
_TILES = 16
_SMS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Opponent:
    """A step without the sums of gradients and the update."""

    name: str
    seconds: float
    exposed: float
    """Of it communication that nothing hides; what is so in every stage, fill included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    a: float
    f: float
    c: float
    a_back: float
    f_back: float
    c_back: float


def opponents(times: StepTimes, micro_batches: int) -> dict[str, Opponent]:
    """All of them by name; `times` are those of a colocated layout, of all of each transfer."""
    scenario = times.scenario
    assert scenario.layout.colocated
    stages = scenario.layout.groups
    chunks = scenario.layout.layers / stages
    costs = times.op_costs()
    two_hop = scenario.layout.two_hop
    layer = _Layer(
        a=costs.attn_fwd,
        f=costs.experts_fwd,
        # both all-to-alls stay in the stage, unlike those of our own ring: gradients of rows are as
        # large as outputs, and go where rows have come from
        c=max((costs.rows + costs.drows) / 2, two_hop * (costs.fan_rows + costs.near_outputs) / 2),
        a_back=costs.attn_bwd,
        f_back=costs.experts_bwd,
        c_back=max(costs.drows, two_hop * (costs.fan_doutputs + costs.near_drows) / 2),
    )
    there = scenario.experts.hardware.multiprocessors
    slow = there / (there - _SMS) * scenario.experts.calibration.overlap_slowdown
    compute = layer.a + layer.f + layer.a_back + layer.f_back
    network = 2 * (layer.c + layer.c_back)
    tutel = min(_tutel(times, layer, parts) for parts in CHUNKS)
    comet = sum(
        max(2 * c, f * slow) + 2 * c / _TILES
        for f, c in ((layer.f, layer.c), (layer.f_back, layer.c_back))
    )
    attention = layer.a + layer.a_back
    pair = max(compute * slow, network)
    weights = costs.experts_wgrad + (layer.a_back - layer.a)
    backward = layer.a_back + layer.f_back + 2 * layer.c_back
    p2p = (stages > 1) * costs.residual
    work = micro_batches * chunks

    def one(name: str, per_layer: float, fill: _Fill, hidden_behind: float) -> Opponent:
        return Opponent(
            name=name,
            seconds=work * per_layer + fill.seconds + micro_batches * costs.head,
            exposed=max(0.0, work * (per_layer - hidden_behind)) + fill.exposed,
        )

    def pipeline(per_layer: float, hidden_behind: float) -> _Fill:
        """The first stages of one micro-batch, and the last ones."""
        return _Fill(
            (stages - 1) * (per_layer + 2 * p2p), (stages - 1) * (per_layer - hidden_behind)
        )

    exposed = compute + network
    behind_tiles = attention + (layer.f + layer.f_back) * slow
    warm_up = chunks * max(0.0, max(1.0, stages / 2) - 1)
    both_ways = _Fill(
        warm_up * (pair + backward - 3 * weights),
        warm_up * (max(0.0, pair - compute * slow) + 2 * layer.c_back),
    )
    found = (
        one("megatron", exposed, pipeline(exposed, compute), compute),
        one("tutel", attention + tutel, pipeline(attention + tutel, compute), compute),
        one("comet", attention + comet, pipeline(attention + comet, behind_tiles), behind_tiles),
        one("dualpipe", pair, both_ways, compute * slow),
        one("overlapped", pair, pipeline(exposed, compute), compute * slow),
    )
    return {opponent.name: opponent for opponent in found}


@dataclass(frozen=True, slots=True)
class _Fill:
    """Filling and draining a pipeline, and how much of that is communication."""

    seconds: float
    exposed: float


def _tutel(times: StepTimes, layer: _Layer, parts: int) -> float:
    """Experts and all-to-alls of a layer, forward and backward, in `parts` chunks."""
    scenario = times.scenario
    experts = max(scenario.expert_parts)
    pairs = sum(scenario.tokens) * scenario.model.top_k * experts / scenario.model.experts
    machine, model = scenario.experts, scenario.model
    whole, chunk = (
        experts_forward_s(machine, model, ExpertWork(pairs=count, experts=experts))
        for count in (pairs, pairs / parts)
    )
    loss = parts * chunk / whole
    seconds = 0.0
    for f, c in ((layer.f, layer.c), (layer.f_back, layer.c_back)):
        if parts == 1:
            seconds += f + 2 * c
        else:
            seconds += 2 * c / parts + max(2 * c - 2 * c / parts, f * loss)
    return seconds
