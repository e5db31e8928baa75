"""What the devices of a run could do at best, against which MFU is measured."""

from collections.abc import Mapping

from disagmoe.config.run import RunConfig
from disagmoe.costs.flops import model_flops
from disagmoe.costs.hardware import device_preset
from disagmoe.schedule.layout import Side, Worker


def peak_flops(config: RunConfig, devices: Mapping[str, str]) -> dict[str, float]:
    """Return the peak FLOP/s of all workers of each side together, in the precision of the run; {}
    where one of them is not known.

    `devices` has the name of each worker's device. `metrics.attention_peak_flops` and
    `expert_peak_flops` go before what data sheets say of it. Colocated workers are those of the
    attention side.
    """
    found: dict[str, float] = {}
    for worker, device in devices.items():
        expert = Worker.parse(worker).group.side is Side.EXPERT
        peak = _peak_of(config, device, expert=expert)
        if not peak:
            return {}
        side = "expert" if expert else "attention"
        found[side] = found.get(side, 0.0) + peak
    return found


def _peak_of(config: RunConfig, device: str, *, expert: bool) -> float:
    """FLOP/s of one worker's device; 0 where it is not known."""
    metrics, precision = config.metrics, config.train.precision
    given = metrics.expert_peak_flops if expert else metrics.attention_peak_flops
    preset = device_preset(device)
    if given or preset is None:
        return given
    match precision:
        case "fp32" | "bf16":
            return preset.peak_flops(precision)
        case "auto" | "fp64":  # of which data sheets say nothing
            return given


def mfu(config: RunConfig, devices: Mapping[str, str], tokens_per_s: float) -> float | None:
    """Return model FLOPs over the peak FLOPs of both sides; None where a peak is not known."""
    peak = sum(peak_flops(config, devices).values())
    flops = model_flops(config.model, config.train.sequence_length)
    return tokens_per_s * flops / peak if peak else None
