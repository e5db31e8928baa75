"""Quantised files of weights, read as the bf16 weights that they stand for.

Two ways of packing are known, by `quantization_config.quant_method` of `config.json`:

- `fp8`, of DeepSeek-V3 and others: X is e4m3, and X_scale_inv holds a factor for each block of
  `weight_block_size` rows and columns (arXiv:2412.19437 section 3.3.2).
- `mxfp4`, of GPT-OSS: X_blocks holds two e2m1 numbers in a byte, the first in its lower half, and
  X_scales the power of two, plus 127, of each 32 of them (OCP Microscaling Formats v1.0, section
  5.3); X itself is transposed.

Letters: E experts, R rows, C columns, G = C / 32 groups of a row, B = 16 bytes of a group.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from disagmoe.errors import ConfigError, DataError
from disagmoe.hf.source import Weights

Method = Literal["fp8", "mxfp4"]
KEY = "quantization_config"
_FP8 = torch.float8_e4m3fn
_FP8_SCALES = "_scale_inv"
_FP4_BLOCKS, _FP4_SCALES = "_blocks", "_scales"
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Values of the lower three bits; the fourth is the sign."""
_BIAS = 127
_NOT_A_NUMBER = 255
_GROUP_BYTES = 16


@dataclass(frozen=True, slots=True)
class Packing:
    """How weights are packed."""

    method: Method
    block: tuple[int, int] = (1, 1)
    """Rows and columns of a block with one scale, in `fp8`."""

    def __str__(self) -> str:
        if self.method == "mxfp4":
            return "mxfp4"
        return f"fp8 with a scale for each {self.block[0]} x {self.block[1]}"


def packing_of(settings: Mapping[str, Any]) -> Packing | None:
    """Return what `config.json` says about packing, None where weights are as they are.

    Raises ConfigError for a packing that is not known.
    """
    given = settings.get(KEY)
    if not given:
        return None
    method = given.get("quant_method")
    if method == "mxfp4":
        return Packing("mxfp4")
    if method != "fp8":
        raise ConfigError(
            f"{KEY}.quant_method = {method!r} is not supported; expected 'fp8' or 'mxfp4', or "
            "weights that were saved in bf16"
        )
    block = given.get("weight_block_size")
    if not (isinstance(block, list) and len(block) == 2 and all(_is_size(n) for n in block)):
        raise ConfigError(
            f"{KEY}.weight_block_size = {block!r}; expected two sizes, such as [128, 128]"
        )
    if given.get("fmt", "e4m3") != "e4m3":
        raise ConfigError(f"{KEY}.fmt = {given['fmt']!r} is not supported; expected 'e4m3'")
    return Packing("fp8", (block[0], block[1]))


def _is_size(value: object) -> bool:
    return isinstance(value, int) and value > 0


@dataclass(frozen=True, slots=True)
class Unpacked:
    """All tensors of a model in the shapes that its network has."""

    files: Weights
    packing: Packing | None
    scales_of: Mapping[str, str]
    """Name of the scales of each packed tensor, by its name in the files."""
    shape_of: Mapping[str, tuple[int, ...]]
    """By name in the network, in the order of files."""

    @classmethod
    def of(cls, files: Weights, packing: Packing | None) -> "Unpacked":
        """Look at names and shapes. Raises DataError where scales and packed tensors do not fit."""
        scales_of = dict(_pairs(files, packing))
        scales = set(scales_of.values())
        shape_of = {}
        for name, shape in files.shape_of.items():
            if name in scales:
                continue
            if name not in scales_of:
                shape_of[name] = shape
                continue
            found = files.shape_of[scales_of[name]]
            assert packing is not None
            if found != _scales_shape(packing, shape):
                raise DataError(
                    f"{scales_of[name]} has shape {found}; expected "
                    f"{_scales_shape(packing, shape)} for {name} of {shape}"
                )
            shape_of[_plain(name, packing)] = _unpacked_shape(packing, shape)
        return cls(files, packing, scales_of, shape_of)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every tensor once, one at a time; those that were packed in bf16.

        Raises DataError where one that is not listed as packed has packed numbers.
        """
        scales = set(self.scales_of.values())
        for name, tensor in self.files.tensors():
            if name in scales:
                continue
            if name in self.scales_of:
                assert self.packing is not None
                yield _plain(name, self.packing), self._unpack(name, tensor)
            elif tensor.dtype.itemsize < torch.bfloat16.itemsize:
                raise DataError(
                    f"{name} holds {tensor.dtype} and has no scales; expected bf16, fp16 or fp32, "
                    f"or {KEY} in config.json and scales beside it"
                )
            else:
                yield name, tensor

    def tensor(self, name: str) -> torch.Tensor:
        """Return one tensor by its name in the files."""
        values = self.files.tensor(name)
        return self._unpack(name, values) if name in self.scales_of else values

    def _unpack(self, name: str, values: torch.Tensor) -> torch.Tensor:
        assert self.packing is not None
        scales = self.files.tensor(self.scales_of[name])
        if self.packing.method == "mxfp4":
            return from_mxfp4(name, values, scales)
        return from_fp8(name, values, scales, self.packing.block)


def _pairs(files: Weights, packing: Packing | None) -> Iterator[tuple[str, str]]:
    """Yield the names of packed tensors, each with that of its scales."""
    if packing is None:
        return
    ending, values = (_FP8_SCALES, "") if packing.method == "fp8" else (_FP4_SCALES, _FP4_BLOCKS)
    for name in files.shape_of:
        if name.endswith(ending):
            packed = name.removesuffix(ending) + values
            if packed not in files.shape_of:
                raise DataError(f"{name} has no {packed} beside it")
            yield packed, name


def _plain(packed: str, packing: Packing) -> str:
    return packed.removesuffix(_FP4_BLOCKS) if packing.method == "mxfp4" else packed


def _scales_shape(packing: Packing, shape: tuple[int, ...]) -> tuple[int, ...]:
    if packing.method == "mxfp4":
        return shape[:-1]
    *more, rows, columns = shape
    return (*more, -(-rows // packing.block[0]), -(-columns // packing.block[1]))


def _unpacked_shape(packing: Packing, shape: tuple[int, ...]) -> tuple[int, ...]:
    if packing.method == "fp8":
        return shape
    *more, rows, groups, size = shape
    return (*more, groups * size * 2, rows)


def from_fp8(
    name: str, values_RC: torch.Tensor, scales_RC: torch.Tensor, block: tuple[int, int]
) -> torch.Tensor:
    """Return each value times the scale of its block, in bf16; both may have more dimensions in
    front. `name` is for the DataError where values are not e4m3."""
    if values_RC.dtype != _FP8:
        raise DataError(f"{name} holds {values_RC.dtype}; expected {_FP8}, as it has scales")
    rows, columns = values_RC.shape[-2:]
    factors_RC = scales_RC.float().repeat_interleave(block[0], -2)[..., :rows, :]
    factors_RC = factors_RC.repeat_interleave(block[1], -1)[..., :columns]
    return values_RC.float().mul_(factors_RC).bfloat16()


def from_mxfp4(name: str, blocks_ERGB: torch.Tensor, scales_ERG: torch.Tensor) -> torch.Tensor:
    """Return the matrices [E, C, R] in bf16, which holds every such number exactly.

    Raises DataError, with `name`, for other than bytes, and for scales that are no number.
    """
    for values in (blocks_ERGB, scales_ERG):
        if values.dtype != torch.uint8:
            raise DataError(f"{name} and its scales hold {values.dtype}; expected torch.uint8")
    if blocks_ERGB.ndim != 4 or blocks_ERGB.shape[-1] != _GROUP_BYTES:
        raise DataError(
            f"{name} has shape {tuple(blocks_ERGB.shape)}; expected experts, rows, groups and "
            f"{_GROUP_BYTES} bytes"
        )
    if bool((scales_ERG == _NOT_A_NUMBER).any()):
        raise DataError(f"{name} has scales that are no number ({_NOT_A_NUMBER})")
    experts, rows, groups, size = blocks_ERGB.shape
    table = torch.tensor([*_E2M1, *(-value for value in _E2M1)])
    out_ECR = torch.empty(experts, groups * size * 2, rows, dtype=torch.bfloat16)
    for expert in range(experts):  # one at a time: a number needs 8 bytes on its way
        bytes_RGB = blocks_ERGB[expert].int()
        halves = torch.stack((bytes_RGB & 15, bytes_RGB >> 4), dim=-1)
        powers_RG = scales_ERG[expert].int() - _BIAS
        numbers = torch.ldexp(table[halves], powers_RG[..., None, None])
        out_ECR[expert] = numbers.view(rows, -1).T
    return out_ECR
