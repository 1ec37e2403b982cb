"""Tensor types of GGUF files and what their codes mean, as one table: a new type is a function and a line in TYPES.

Formats: `ggml-quants.c` and `gguf-py/gguf/quants.py` of https://github.com/ggml-org/llama.cpp. A row is a sequence of
blocks of `block_size` elements; a block is its `fields` one after the other, each a number of bytes. A splitter gets
each field of many blocks, uint8 (blocks, bytes), and returns codes, scales and minima as the type's coding arranges
them (kernels/quantized.py). The values equal the gguf package's bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from vivace.kernels.quantized import Coding, Quantized

CHUNK_ELEMENTS = 1 << 17  # the temporaries of one step stay in the processor's cache

# Values of four-bit codes: the non-linear table of IQ4, and e2m1 doubled (MXFP4 scales are halved in turn).
IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


@dataclass(frozen=True)
class GgufType:
    """One tensor type. Plain types have a `dtype`, packed ones a `coding` and a `split` that takes a block's fields."""

    code: int
    name: str
    block_size: int
    fields: tuple[int, ...]
    dtype: torch.dtype | None = None
    coding: Coding | None = None
    split: Callable[..., Quantized] | None = None

    @property
    def block_bytes(self) -> int:
        return sum(self.fields)


def split_blocks(blocks: Tensor, kind: GgufType) -> Quantized:
    """Codes, scales and minima of packed blocks, uint8 (blocks, block_bytes); each block is a row of the result."""
    assert kind.split is not None, f"{kind.name} is not packed"
    return kind.split(*torch.split(blocks, list(kind.fields), dim=1))


def dequantize(raw: Tensor, kind: GgufType) -> Tensor:
    """Packed blocks, uint8 (blocks * block_bytes,), as float32 (blocks * block_size,)."""
    assert kind.coding is not None, f"{kind.name} is not packed"
    blocks = raw.reshape(-1, kind.block_bytes)
    values = torch.empty(blocks.shape[0], kind.block_size, dtype=torch.float32)
    step = max(1, CHUNK_ELEMENTS // kind.block_size)
    for start in range(0, blocks.shape[0], step):
        values[start : start + step] = split_blocks(blocks[start : start + step], kind).values(kind.coding)
    return values.reshape(-1)


# -- 32-element blocks: one scale, perhaps one minimum ----------------------------------------------------------------


def _four_bits(d: Tensor, qs: Tensor) -> Quantized:
    """w = d * (q - 8) in Q4_0, d * IQ4_VALUES[q] in IQ4_NL"""
    return Quantized(_codes(qs, 4, run=16), _half(d))


def _q4_1(d: Tensor, m: Tensor, qs: Tensor) -> Quantized:
    """w = d * q + m"""
    return Quantized(_codes(qs, 4, run=16), _half(d), coarse_minimum=_half(m))


def _q5_0(d: Tensor, qh: Tensor, qs: Tensor) -> Quantized:
    """w = d * (q - 16), the fifth bits of the codes apart in qh"""
    return Quantized(_codes(qs, 4, run=16) | (_codes(qh, 1, run=1) << 4), _half(d))


def _q5_1(d: Tensor, m: Tensor, qh: Tensor, qs: Tensor) -> Quantized:
    """w = d * q + m, the fifth bits of the codes apart in qh"""
    return Quantized(_codes(qs, 4, run=16) | (_codes(qh, 1, run=1) << 4), _half(d), coarse_minimum=_half(m))


def _q8_0(d: Tensor, qs: Tensor) -> Quantized:
    """w = d * q, q signed: as a code it is shifted by 128"""
    return Quantized(qs ^ 128, _half(d))


def _mxfp4(e: Tensor, qs: Tensor) -> Quantized:
    """w = 2^(e - 128) * E2M1_VALUES[q] (OCP Microscaling Formats 1.0)"""
    e = e.to(torch.int32)
    # The scale is put together as float32 bits; exponents 0 and 1 give subnormal numbers.
    bits = torch.where(e < 2, 0x00200000 << e.clamp(max=1), (e - 1) << 23)
    return Quantized(_codes(qs, 4, run=16), bits.view(torch.float32))


# -- 256-element blocks ("K"): scales of 16 or 32 elements are themselves quantized -----------------------------------


def _q2_k(scales: Tensor, qs: Tensor, d: Tensor, dmin: Tensor) -> Quantized:
    """w = (d * scale) * q - (dmin * min), per 16 elements; scale and min are the two halves of a byte"""
    return Quantized(_codes(qs, 2, run=32), _half(d), _int8(scales & 15), -_half(dmin), _int8(scales >> 4))


def _q3_k(hmask: Tensor, qs: Tensor, scales: Tensor, d: Tensor) -> Quantized:
    """w = (d * (scale - 32)) * (q - 4), per 16 elements; hmask holds the third bits of the codes"""
    low, high = torch.split(scales, [8, 4], dim=1)
    scale = _codes(low, 4, run=8) | (_codes(high, 2, run=4) << 4)
    return Quantized(_codes(qs, 2, run=32) | (_codes(hmask, 1, run=32) << 2), _half(d), _int8(scale) - 32)


def _q4_k(d: Tensor, dmin: Tensor, scales: Tensor, qs: Tensor) -> Quantized:
    """w = (d * scale) * q - (dmin * min), per 32 elements"""
    scale, minimum = _scales_and_minima(scales)
    return Quantized(_codes(qs, 4, run=32), _half(d), scale, -_half(dmin), minimum)


def _q5_k(d: Tensor, dmin: Tensor, scales: Tensor, qh: Tensor, qs: Tensor) -> Quantized:
    """As Q4_K, the fifth bits of the codes apart in qh"""
    scale, minimum = _scales_and_minima(scales)
    return Quantized(_codes(qs, 4, run=32) | (_codes(qh, 1, run=32) << 4), _half(d), scale, -_half(dmin), minimum)


def _q6_k(ql: Tensor, qh: Tensor, scales: Tensor, d: Tensor) -> Quantized:
    """w = (d * scale) * (q - 32), per 16 elements; qh holds the upper two bits of the codes"""
    return Quantized(_codes(ql, 4, run=64) | (_codes(qh, 2, run=32) << 4), _half(d), _int8(scales))


def _iq4_xs(d: Tensor, scales_high: Tensor, scales_low: Tensor, qs: Tensor) -> Quantized:
    """w = (d * (scale - 32)) * IQ4_VALUES[q], per 32 elements"""
    scale = _codes(scales_low, 4, run=1) | (_codes(scales_high, 2, run=1) << 4)
    return Quantized(_codes(qs, 4, run=16), _half(d), _int8(scale) - 32)


# -- what they share --------------------------------------------------------------------------------------------------


def _half(field: Tensor) -> Tensor:
    """(blocks, 2) bytes of a float16 -> (blocks, 1) float16"""
    return field.contiguous().view(torch.float16)


def _int8(field: Tensor) -> Tensor:
    """Bytes as signed numbers."""
    return field.contiguous().view(torch.int8)


def _codes(field: Tensor, bits: int, run: int) -> Tensor:
    """Unpack `bits`-wide codes: each run of `run` bytes holds first all its lowest codes, then the next ones up.

    (blocks, n) bytes -> (blocks, n * 8 / bits) uint8"""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8).reshape(1, 1, -1, 1)
    parts = field.reshape(field.shape[0], -1, 1, run) >> shifts
    return (parts & ((1 << bits) - 1)).reshape(field.shape[0], -1)


def _scales_and_minima(field: Tensor) -> tuple[Tensor, Tensor]:
    """The eight 6-bit scales and eight 6-bit minima of Q4_K and Q5_K, int8 (blocks, 8) each.

    Bytes 0-3 hold scales 0-3 and bytes 4-7 minima 0-3 in their low six bits; bytes 8-11 the low four bits of scales
    and minima 4-7, whose upper two bits fill up the bytes before."""
    first, second, third = torch.split(field, 4, dim=1)
    scales = torch.cat([first & 63, (third & 15) | ((first >> 2) & 48)], dim=1)
    minima = torch.cat([second & 63, (third >> 4) | ((second >> 2) & 48)], dim=1)
    return _int8(scales), _int8(minima)


def _k(bits: int, group: int, *, zero: int = 1, has_minimum: bool = False, table: tuple[int, ...] = ()) -> Coding:
    return Coding(bits, group, 256, zero, has_minimum, has_fine=True, table=table)


TYPES: Mapping[int, GgufType] = MappingProxyType(
    {
        kind.code: kind
        for kind in (
            GgufType(0, "F32", 1, (4,), dtype=torch.float32),
            GgufType(1, "F16", 1, (2,), dtype=torch.float16),
            GgufType(2, "Q4_0", 32, (2, 16), None, Coding(4, zero=8), _four_bits),
            GgufType(3, "Q4_1", 32, (2, 2, 16), None, Coding(4, has_minimum=True), _q4_1),
            GgufType(6, "Q5_0", 32, (2, 4, 16), None, Coding(5, zero=16), _q5_0),
            GgufType(7, "Q5_1", 32, (2, 2, 4, 16), None, Coding(5, has_minimum=True), _q5_1),
            GgufType(8, "Q8_0", 32, (2, 32), None, Coding(8, zero=128), _q8_0),
            GgufType(10, "Q2_K", 256, (16, 64, 2, 2), None, _k(2, 16, has_minimum=True), _q2_k),
            GgufType(11, "Q3_K", 256, (32, 64, 12, 2), None, _k(3, 16, zero=4), _q3_k),
            GgufType(12, "Q4_K", 256, (2, 2, 12, 128), None, _k(4, 32, has_minimum=True), _q4_k),
            GgufType(13, "Q5_K", 256, (2, 2, 12, 32, 128), None, _k(5, 32, has_minimum=True), _q5_k),
            GgufType(14, "Q6_K", 256, (128, 64, 16, 2), None, _k(6, 16, zero=32), _q6_k),
            GgufType(20, "IQ4_NL", 32, (2, 16), None, Coding(4, table=IQ4_VALUES), _four_bits),
            GgufType(23, "IQ4_XS", 256, (2, 2, 4, 128), None, _k(4, 32, table=IQ4_VALUES), _iq4_xs),
            GgufType(24, "I8", 1, (1,), dtype=torch.int8),
            GgufType(25, "I16", 1, (2,), dtype=torch.int16),
            GgufType(26, "I32", 1, (4,), dtype=torch.int32),
            GgufType(27, "I64", 1, (8,), dtype=torch.int64),
            GgufType(28, "F64", 1, (8,), dtype=torch.float64),
            GgufType(30, "BF16", 1, (2,), dtype=torch.bfloat16),
            GgufType(39, "MXFP4", 32, (1, 16), None, Coding(4, is_f32=True, table=E2M1_VALUES), _mxfp4),
        )
    }
)
