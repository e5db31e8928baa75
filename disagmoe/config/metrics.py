"""What a run tells about itself, and what has to be known to judge it."""

from pydantic import Field

from disagmoe.config.base import Section


class MetricsConfig(Section):
    """Metrics for Prometheus, which every process of a run serves, and other sinks."""

    port_base: int = Field(default=0, ge=0)
    """Port of the metrics of the run, which the process of the script serves; the workers of a host
    take those after it. A taken one is left for the next that is free. 0 lets the system choose;
    `prom_sd.json` has all ports."""
    targets_dir: str = ""
    """Folder into which the targets are written as well, as RUN.json: for a Prometheus that watches
    `DIR/*.json`, as patterns match file names only. Empty text writes them to the run directory
    alone."""
    attention_peak_flops: float = Field(default=0.0, ge=0)
    """Peak FLOP/s of one attention worker's device in the precision of the run, without sparsity;
    MFU is measured against the peaks of both sides. 0: what the data sheet says of its GPU; cores
    and GPUs that are not known have no MFU then."""
    expert_peak_flops: float = Field(default=0.0, ge=0)
    """Peak FLOP/s of one expert worker's device, likewise; colocated workers are those of
    attention."""
    link_bytes_per_s: float = Field(default=0.0, ge=0)
    """Bytes per second that one worker can send over its share of the network, the roof in the
    dashboard of bandwidths. 0: not known, no roof."""
    tensorboard: bool = False
    """Write losses, rates and shares to `tensorboard/` of the run directory as well; needs the
    package tensorboard."""
