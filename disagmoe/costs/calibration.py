"""How much of a data sheet's rates real kernels and networks reach: named sets of parameters.

All are shares of a machine's peaks, so that a calibration fits machines of one kind. README.md
beside this file lists what each was fitted to, and how well.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from disagmoe.errors import ConfigError

_CUDA_BYTES = 2 * 10**9
"""Context, libraries' workspaces and communicators of a GPU; a usual size, from memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmCurve:
    """Rate of a matrix product [m, k] x [k, n].

    Compute takes FLOPs / (peak x share x k / (k + half_width)), streaming the weights takes bytes /
    memory rate; where both are alike each slows the other, and the time is
    (compute^sharpness + streaming^sharpness)^(1 / sharpness). Both come after what the activations
    take: `moved` elements per row and unit of width.
    """

    share: float
    half_width: float = 0.0
    sharpness: float = 1.0
    moved: float = 0.0
    launches: int = 1
    """Kernels that make it up, each of which takes at least `Calibration.kernel_s`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashCurve:
    """Rate of causal flash attention forward: peak x share x S / (S + half_length)."""

    head_dim: int
    share: float
    half_length: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OpFit:
    """How long a whole op of the runtime takes, by what its kernels take: `factor` times as long,
    and `fixed_s`."""

    factor: float
    fixed_s: float

    def __call__(self, kernels_s: float) -> float:
        """Seconds of an op whose kernels take `kernels_s`; one that does nothing takes none."""
        return self.factor * kernels_s + self.fixed_s if kernels_s else 0.0


AS_KERNELS = OpFit(factor=1.0, fixed_s=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageWork:
    """What the processor that computes has to do for one end of a message."""

    message_s: float
    byte_s: float

    def __call__(self, messages: float, nbytes: float) -> float:
        """Seconds for `messages` of `nbytes` together."""
        return messages * self.message_s + nbytes * self.byte_s


NO_WORK = MessageWork(message_s=0.0, byte_s=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Achieved rates."""

    name: str
    projection: GemmCurve
    """Attention's projections."""
    dense: GemmCurve
    """Other dense products: SwiGLU of shared experts and dense layers, LM head."""
    grouped: GemmCurve
    """All experts of a worker at once, with permutation and SwiGLU."""
    router_in_fp32: bool
    """Whether the router's product runs at the fp32 rate, or as a projection."""
    flash: tuple[FlashCurve, ...]
    """By ascending head width; in between they are interpolated."""
    flash_backward: float
    """Rate of the backward over that of the forward, by hardware FLOPs."""
    memory_share: float
    """Achieved share of the memory rate; infinite where kernels' rates already have it in them."""
    kernel_s: float
    """Least time of a kernel."""
    nic_share: float
    nvlink_share: float
    latency_s: float
    """From the end of a transfer's last byte at the sender to its use at the receiver."""
    overlap_slowdown: float
    """How much longer compute takes beside kernels that communicate, besides the share of
    multiprocessors that those take."""
    system_bytes: float
    """What a worker takes without a model: its process, or context and libraries on a GPU."""
    ops: Mapping[str, OpFit] = field(default_factory=dict)
    """By op, and for the update of a step; others take as long as their kernels."""
    burst_bytes: float = 0.0
    """What a network card that was idle carries for nothing, as those whose rate is enforced do."""
    send_work: MessageWork = NO_WORK
    receive_work: MessageWork = NO_WORK
    """None on a GPU, whose transfers are driven by processors that do not compute."""

    def op(self, name: str) -> OpFit:
        """How long op `name` takes by its kernels."""
        return self.ops.get(name, AS_KERNELS)


H800_KERNEL = Calibration(
    name="h800-kernel",
    projection=GemmCurve(share=0.826, half_width=133, sharpness=3.0),
    dense=GemmCurve(share=0.826, half_width=133, sharpness=3.0),
    grouped=GemmCurve(share=1.0, sharpness=2.0, moved=6.2, launches=9),
    router_in_fp32=True,
    flash=(
        FlashCurve(head_dim=64, share=560 / 989, half_length=1500),
        FlashCurve(head_dim=128, share=700 / 989, half_length=1150),
    ),
    flash_backward=0.86,
    memory_share=0.8,
    kernel_s=3e-6,
    nic_share=0.86,
    nvlink_share=0.775,
    latency_s=15e-6,
    overlap_slowdown=1.03,
    system_bytes=_CUDA_BYTES,
)
"""Kernels measured alone, on cool H100 and H800."""

_PAPER_GROUPED = 0.348

H800_PAPERFIT = Calibration(
    name="h800-paperfit",
    projection=GemmCurve(share=0.40 * _PAPER_GROUPED, launches=0),
    dense=GemmCurve(share=_PAPER_GROUPED, launches=0),
    grouped=GemmCurve(share=_PAPER_GROUPED, launches=0),
    router_in_fp32=False,
    flash=(FlashCurve(head_dim=128, share=0.73 * _PAPER_GROUPED),),
    flash_backward=1.0,
    memory_share=math.inf,
    kernel_s=0.0,
    nic_share=0.98,
    nvlink_share=0.775,
    latency_s=15e-6,
    overlap_slowdown=1.0,
    system_bytes=_CUDA_BYTES,
)
"""What the DisagMoE paper's figure 6a implies for its testbed, read as times of a forward; flat
rates."""

_STEP_GROUPED = 0.525

H800_PAPERSTEP = replace(
    H800_PAPERFIT,
    name="h800-paperstep",
    projection=GemmCurve(share=0.423 * _STEP_GROUPED, launches=0),
    dense=GemmCurve(share=_STEP_GROUPED, launches=0),
    grouped=GemmCurve(share=_STEP_GROUPED, launches=0),
    flash=(FlashCurve(head_dim=128, share=0.785 * _STEP_GROUPED),),
)
"""The same figure read as times of a whole step, whose backward computes twice as much and sends as
much as the forward: rates half as high again, near those of `h800-kernel`."""

CPU_KERNEL = Calibration(
    name="cpu-kernel",
    projection=GemmCurve(share=0.92, sharpness=2.0),
    dense=GemmCurve(share=0.92, sharpness=2.0),
    grouped=GemmCurve(share=0.85, sharpness=2.0, moved=6.2, launches=9),
    router_in_fp32=True,
    flash=(FlashCurve(head_dim=64, share=0.72, half_length=400),),
    flash_backward=0.8,
    memory_share=1.0,
    kernel_s=5e-6,
    nic_share=0.9,
    nvlink_share=0.5,
    latency_s=100e-6,
    overlap_slowdown=1.0,
    system_bytes=0.0,
)
"""One core of a server in fp32, roughly."""

CALIBRATIONS: dict[str, Calibration] = {
    one.name: one for one in (H800_KERNEL, H800_PAPERFIT, H800_PAPERSTEP, CPU_KERNEL)
}


def calibration(name: str) -> Calibration:
    """The calibration `name`. Raises ConfigError, with all names, where there is none."""
    found = CALIBRATIONS.get(name)
    if found is None:
        raise ConfigError(f"unknown calibration {name!r}; known: {', '.join(CALIBRATIONS)}")
    return found
