"""How long kernels take on a machine: matrix products, grouped experts, flash attention, copies."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from disagmoe.costs.calibration import Calibration, FlashCurve, GemmCurve
from disagmoe.costs.flops import mean_keys
from disagmoe.costs.hardware import ELEMENT_BYTES, Hardware, Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A worker's machine as it really performs."""

    hardware: Hardware
    calibration: Calibration
    precision: Precision
    """Of weights and activations."""

    @property
    def element_bytes(self) -> int:
        """Bytes of a weight or an activation."""
        return ELEMENT_BYTES[self.precision]

    @property
    def peak_flops(self) -> float:
        """FLOPs per second at best."""
        return self.hardware.peak_flops(self.precision)

    @property
    def memory_bytes_per_s(self) -> float:
        """Achieved rate of kernels that do nothing but move data."""
        return self.hardware.memory_bytes_per_s * self.calibration.memory_share


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product: rows x inner x outer, with weights [inner, outer]."""

    inner: int
    outer: int

    @property
    def weights(self) -> int:
        """Elements of the weights."""
        return self.inner * self.outer


def moved_s(machine: Machine, nbytes: float, kernels: int = 1) -> float:
    """Seconds of `kernels` that read and write `nbytes` together, at memory rate."""
    return nbytes / machine.memory_bytes_per_s + kernels * machine.calibration.kernel_s


def product_s(
    machine: Machine, curve: GemmCurve, rows: float, product: Product, *, peak: float | None = None
) -> float:
    """Seconds of one dense product over `rows` rows; `peak` replaces the machine's."""
    if rows == 0:
        return 0.0
    compute = 2 * rows * product.weights / _rate(machine, curve, product.inner, peak)
    stream = product.weights * machine.element_bytes / machine.memory_bytes_per_s
    return _both(compute, stream, curve.sharpness) + curve.launches * machine.calibration.kernel_s


def products_s(
    machine: Machine, curve: GemmCurve, rows: float, products: Sequence[Product]
) -> float:
    """Seconds of several dense products over the same rows."""
    return sum(product_s(machine, curve, rows, product) for product in products)


def grouped_s(machine: Machine, *, pairs: float, experts: float, hidden: int, width: int) -> float:
    """Seconds of the SwiGLU of `experts` experts for `pairs` of a token and an expert, forward,
    from rows in to sums out. The backward of the inputs, and that of the weights, take as long."""
    if pairs == 0:
        return 0.0
    curve, calibration = machine.calibration.grouped, machine.calibration
    weights = 3 * hidden * width
    compute = 2 * pairs * weights / _rate(machine, curve, min(hidden, width), None)
    touched = min(experts, pairs)
    stream = touched * weights * machine.element_bytes / machine.memory_bytes_per_s
    moved = curve.moved * (hidden + width) * pairs * machine.element_bytes
    return (
        _both(compute, stream, curve.sharpness)
        + moved / machine.memory_bytes_per_s
        + curve.launches * calibration.kernel_s
    )


def flash_rate(machine: Machine, head_dim: int, length: int, window: int = 0) -> float:
    """FLOPs per second of causal flash attention forward, counting keys that are seen.

    With a window a query sees as few keys as in a short sequence, and that is how fast it goes: the
    curve is read where its queries see as many keys on average. (FA3 with 128 keys and heads of 64:
    82 TFLOP/s against 79 to 88 measured for 2K to 16K.)
    """
    share, half = _flash_curve(machine.calibration.flash, head_dim)
    seen = 2 * mean_keys(length, window) - 1
    return machine.peak_flops * share * seen / (seen + half)


def _flash_curve(curves: tuple[FlashCurve, ...], head_dim: int) -> tuple[float, float]:
    """Share and half length for `head_dim`: those of the nearest curve outside of all."""
    first, last = curves[0], curves[-1]
    if head_dim <= first.head_dim:
        return first.share, first.half_length
    for low, high in pairwise(curves):
        if head_dim <= high.head_dim:
            at = (head_dim - low.head_dim) / (high.head_dim - low.head_dim)
            share = low.share + at * (high.share - low.share)
            return share, low.half_length + at * (high.half_length - low.half_length)
    return last.share, last.half_length


def _rate(machine: Machine, curve: GemmCurve, inner: int, peak: float | None) -> float:
    peak = machine.peak_flops if peak is None else peak
    return peak * curve.share * inner / (inner + curve.half_width)


def _both(compute: float, stream: float, sharpness: float) -> float:
    larger = max(compute, stream)
    if larger == 0:
        return 0.0
    smaller = min(compute, stream) / larger
    return float(larger * (1 + smaller**sharpness) ** (1 / sharpness))
