"""Writes Q4_K and Q6_K blocks, which the gguf package only reads: plain rounding, no search for better scales.

Formats: `ggml-quants.c` of https://github.com/ggml-org/llama.cpp; vivace/weights/gguf_types.py reads them.
"""

from __future__ import annotations

import torch
from torch import Tensor


def q4_k(values: Tensor) -> Tensor:
    """w = (d * scale) * q - (dmin * min), per 32 elements: float32 (.., 256 n) -> uint8 (.., 144 n)."""
    groups = values.reshape(-1, 8, 32)
    low = groups.amin(2).clamp(max=0)
    steps = (groups.amax(2) - low).clamp(min=0) / 15
    d, scale = _fine(steps, 63)
    dmin, minimum = _fine(-low, 63)
    step = (d * scale).unsqueeze(2)
    codes = ((groups + (dmin * minimum).unsqueeze(2)) / torch.where(step > 0, step, 1)).round().clamp(0, 15)
    scale, minimum = scale.byte(), minimum.byte()
    packed_scales = [
        scale[:, :4] | (scale[:, 4:] >> 4 << 6),
        minimum[:, :4] | (minimum[:, 4:] >> 4 << 6),
        (scale[:, 4:] & 15) | ((minimum[:, 4:] & 15) << 4),
    ]
    return _blocks(values, _half(d), _half(dmin), *packed_scales, _pack(codes.byte(), 4, run=32))


def q6_k(values: Tensor) -> Tensor:
    """w = (d * scale) * (q - 32), per 16 elements: float32 (.., 256 n) -> uint8 (.., 210 n)."""
    groups = values.reshape(-1, 16, 16)
    d, scale = _fine(groups.abs().amax(2) / 31, 127)
    step = (d * scale).unsqueeze(2)
    codes = ((groups / torch.where(step > 0, step, 1)).round() + 32).clamp(0, 63).byte()
    low, high = _pack(codes & 15, 4, run=64), _pack(codes >> 4, 2, run=32)
    return _blocks(values, low, high, scale.byte(), _half(d))


def _fine(steps: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The scales of a block as a coarse one, float16 in float32 (blocks, 1), times whole numbers up to `most`."""
    coarse = (steps.amax(1, keepdim=True) / most).half().float()
    return coarse, (steps / torch.where(coarse > 0, coarse, 1)).round().clamp(0, most)


def _half(coarse: Tensor) -> Tensor:
    return coarse.half().view(torch.uint8)


def _pack(codes: Tensor, bits: int, run: int) -> Tensor:
    """Each run of `run` bytes holds first all its lowest codes, then the next ones up: uint8 (blocks, bytes)."""
    parts = codes.reshape(codes.shape[0], -1, 8 // bits, run)
    shifted = [parts[:, :, place] << bits * place for place in range(8 // bits)]
    return torch.stack(shifted).sum(0).byte().flatten(1)


def _blocks(values: Tensor, *fields: Tensor) -> Tensor:
    return torch.cat(fields, 1).reshape(*values.shape[:-1], -1)
