"""Tensor types of GGUF files and their dequantization, as one table: a new type is a function and a line in TYPES.

Formats: `ggml-quants.c` and `gguf-py/gguf/quants.py` of https://github.com/ggml-org/llama.cpp. A row is a sequence of
blocks of `block_size` elements; a block is its `fields` one after the other, each a number of bytes. A dequantizer
gets each field of many blocks, uint8 (blocks, bytes), and returns float32 (blocks, block_size). The order of its
float operations is part of the format: results equal the gguf package's bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

CHUNK_ELEMENTS = 1 << 17  # the temporaries of one step stay in the processor's cache

# Values of four-bit codes: the non-linear table of IQ4, and e2m1 doubled (MXFP4 scales are halved in turn).
IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


@dataclass(frozen=True)
class GgufType:
    """One tensor type. Plain types have a `dtype`; packed ones have a `dequantize` that takes the block's fields."""

    code: int
    name: str
    block_size: int
    fields: tuple[int, ...]
    dtype: torch.dtype | None = None
    dequantize: Callable[..., Tensor] | None = None

    @property
    def block_bytes(self) -> int:
        return sum(self.fields)


def dequantize(raw: Tensor, kind: GgufType) -> Tensor:
    """Packed blocks, uint8 (blocks * block_bytes,), as float32 (blocks * block_size,)."""
    assert kind.dequantize is not None, f"{kind.name} is not packed"
    blocks = raw.reshape(-1, kind.block_bytes)
    values = torch.empty(blocks.shape[0], kind.block_size, dtype=torch.float32)
    step = max(1, CHUNK_ELEMENTS // kind.block_size)
    for start in range(0, blocks.shape[0], step):
        fields = torch.split(blocks[start : start + step], list(kind.fields), dim=1)
        values[start : start + step] = kind.dequantize(*fields)
    return values.reshape(-1)


# -- 32-element blocks: one scale, perhaps one minimum ----------------------------------------------------------------


def _q4_0(d: Tensor, qs: Tensor) -> Tensor:
    """w = d * (q - 8)"""
    return _half(d) * (_codes(qs, 4, run=16).to(torch.int8) - 8).float()


def _q4_1(d: Tensor, m: Tensor, qs: Tensor) -> Tensor:
    """w = d * q + m"""
    return _half(d) * _codes(qs, 4, run=16).float() + _half(m)


def _q5_0(d: Tensor, qh: Tensor, qs: Tensor) -> Tensor:
    """w = d * (q - 16), the fifth bits of the codes apart in qh"""
    q = _codes(qs, 4, run=16) | (_codes(qh, 1, run=1) << 4)
    return _half(d) * (q.to(torch.int8) - 16).float()


def _q5_1(d: Tensor, m: Tensor, qh: Tensor, qs: Tensor) -> Tensor:
    """w = d * q + m, the fifth bits of the codes apart in qh"""
    q = _codes(qs, 4, run=16) | (_codes(qh, 1, run=1) << 4)
    return _half(d) * q.float() + _half(m)


def _q8_0(d: Tensor, qs: Tensor) -> Tensor:
    """w = d * q"""
    return _half(d) * qs.view(torch.int8).float()


def _iq4_nl(d: Tensor, qs: Tensor) -> Tensor:
    """w = d * IQ4_VALUES[q]"""
    return _half(d) * _look_up(IQ4_VALUES, _codes(qs, 4, run=16))


def _mxfp4(e: Tensor, qs: Tensor) -> Tensor:
    """w = 2^(e - 128) * E2M1_VALUES[q] (OCP Microscaling Formats 1.0)"""
    e = e.to(torch.int32)
    # The scale is put together as float32 bits; exponents 0 and 1 give subnormal numbers.
    bits = torch.where(e < 2, 0x00200000 << e.clamp(max=1), (e - 1) << 23)
    return bits.view(torch.float32) * _look_up(E2M1_VALUES, _codes(qs, 4, run=16))


# -- 256-element blocks ("K"): scales of 16 or 32 elements are themselves quantized -----------------------------------


def _q2_k(scales: Tensor, qs: Tensor, d: Tensor, dmin: Tensor) -> Tensor:
    """w = (d * scale) * q - (dmin * min), per 16 elements; scale and min are the two halves of a byte"""
    scale = _half(d) * (scales & 15).float()
    minimum = _half(dmin) * (scales >> 4).float()
    return _scaled(scale, _codes(qs, 2, run=32), minimum)


def _q3_k(hmask: Tensor, qs: Tensor, scales: Tensor, d: Tensor) -> Tensor:
    """w = (d * (scale - 32)) * (q - 4), per 16 elements; hmask holds the third bits of the codes"""
    low, high = torch.split(scales, [8, 4], dim=1)
    scale = _codes(low, 4, run=8) | (_codes(high, 2, run=4) << 4)
    q = _codes(qs, 2, run=32) | (_codes(hmask, 1, run=32) << 2)
    return _scaled(_half(d) * (scale.to(torch.int8) - 32).float(), q.to(torch.int8) - 4)


def _q4_k(d: Tensor, dmin: Tensor, scales: Tensor, qs: Tensor) -> Tensor:
    """w = (d * scale) * q - (dmin * min), per 32 elements"""
    scale, minimum = _scales_and_minima(scales)
    return _scaled(_half(d) * scale, _codes(qs, 4, run=32), _half(dmin) * minimum)


def _q5_k(d: Tensor, dmin: Tensor, scales: Tensor, qh: Tensor, qs: Tensor) -> Tensor:
    """As Q4_K, the fifth bits of the codes apart in qh"""
    scale, minimum = _scales_and_minima(scales)
    q = _codes(qs, 4, run=32) | (_codes(qh, 1, run=32) << 4)
    return _scaled(_half(d) * scale, q, _half(dmin) * minimum)


def _q6_k(ql: Tensor, qh: Tensor, scales: Tensor, d: Tensor) -> Tensor:
    """w = (d * scale) * (q - 32), per 16 elements; qh holds the upper two bits of the codes"""
    q = _codes(ql, 4, run=64) | (_codes(qh, 2, run=32) << 4)
    return _scaled(_half(d) * scales.view(torch.int8).float(), q.to(torch.int8) - 32)


def _iq4_xs(d: Tensor, scales_high: Tensor, scales_low: Tensor, qs: Tensor) -> Tensor:
    """w = (d * (scale - 32)) * IQ4_VALUES[q], per 32 elements"""
    scale = _codes(scales_low, 4, run=1) | (_codes(scales_high, 2, run=1) << 4)
    return _scaled(_half(d) * (scale.to(torch.int8) - 32).float(), _look_up(IQ4_VALUES, _codes(qs, 4, run=16)))


# -- what they share --------------------------------------------------------------------------------------------------


def _half(field: Tensor) -> Tensor:
    """(blocks, 2) bytes of a float16 -> (blocks, 1) float32"""
    return field.contiguous().view(torch.float16).float()


def _codes(field: Tensor, bits: int, run: int) -> Tensor:
    """Unpack `bits`-wide codes: each run of `run` bytes holds first all its lowest codes, then the next ones up.

    (blocks, n) bytes -> (blocks, n * 8 / bits) uint8"""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8).reshape(1, 1, -1, 1)
    parts = field.reshape(field.shape[0], -1, 1, run) >> shifts
    return (parts & ((1 << bits) - 1)).reshape(field.shape[0], -1)


def _scaled(scale: Tensor, q: Tensor, minimum: Tensor | None = None) -> Tensor:
    """scale * q - minimum, each scale (blocks, groups) for an equal share of the codes q (blocks, elements)."""
    grouped = scale.unsqueeze(2) * q.reshape(*scale.shape, -1).float()
    if minimum is not None:
        grouped = grouped - minimum.unsqueeze(2)
    return grouped.reshape(q.shape)


def _scales_and_minima(field: Tensor) -> tuple[Tensor, Tensor]:
    """The eight 6-bit scales and eight 6-bit minima of Q4_K and Q5_K, float32 (blocks, 8) each.

    Bytes 0-3 hold scales 0-3 and bytes 4-7 minima 0-3 in their low six bits; bytes 8-11 the low four bits of scales
    and minima 4-7, whose upper two bits fill up the bytes before."""
    first, second, third = torch.split(field, 4, dim=1)
    scales = torch.cat([first & 63, (third & 15) | ((first >> 2) & 48)], dim=1)
    minima = torch.cat([second & 63, (third >> 4) | ((second >> 2) & 48)], dim=1)
    return scales.float(), minima.float()


def _look_up(values: tuple[int, ...], codes: Tensor) -> Tensor:
    """The value of each code, float32."""
    return torch.tensor(values, dtype=torch.float32)[codes.int()]


TYPES: Mapping[int, GgufType] = MappingProxyType(
    {
        kind.code: kind
        for kind in (
            GgufType(0, "F32", 1, (4,), dtype=torch.float32),
            GgufType(1, "F16", 1, (2,), dtype=torch.float16),
            GgufType(2, "Q4_0", 32, (2, 16), dequantize=_q4_0),
            GgufType(3, "Q4_1", 32, (2, 2, 16), dequantize=_q4_1),
            GgufType(6, "Q5_0", 32, (2, 4, 16), dequantize=_q5_0),
            GgufType(7, "Q5_1", 32, (2, 2, 4, 16), dequantize=_q5_1),
            GgufType(8, "Q8_0", 32, (2, 32), dequantize=_q8_0),
            GgufType(10, "Q2_K", 256, (16, 64, 2, 2), dequantize=_q2_k),
            GgufType(11, "Q3_K", 256, (32, 64, 12, 2), dequantize=_q3_k),
            GgufType(12, "Q4_K", 256, (2, 2, 12, 128), dequantize=_q4_k),
            GgufType(13, "Q5_K", 256, (2, 2, 12, 32, 128), dequantize=_q5_k),
            GgufType(14, "Q6_K", 256, (128, 64, 16, 2), dequantize=_q6_k),
            GgufType(20, "IQ4_NL", 32, (2, 16), dequantize=_iq4_nl),
            GgufType(23, "IQ4_XS", 256, (2, 2, 4, 128), dequantize=_iq4_xs),
            GgufType(24, "I8", 1, (1,), dtype=torch.int8),
            GgufType(25, "I16", 1, (2,), dtype=torch.int16),
            GgufType(26, "I32", 1, (4,), dtype=torch.int32),
            GgufType(27, "I64", 1, (8,), dtype=torch.int64),
            GgufType(28, "F64", 1, (8,), dtype=torch.float64),
            GgufType(30, "BF16", 1, (2,), dtype=torch.bfloat16),
            GgufType(39, "MXFP4", 32, (1, 16), dequantize=_mxfp4),
        )
    }
)
