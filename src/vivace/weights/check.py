"""Finds NaN and infinity in the tensors of a weight file; what is packed is not unpacked: only scales can hold them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from vivace.errors import WeightError
from vivace.weights.files import TensorFile, shown
from vivace.weights.gguf_types import TYPES, GgufType, dequantize

CHUNK_BYTES = 1 << 20  # checked at a time: they stay in the processor's cache

_PACKED = MappingProxyType({kind.name: kind for kind in TYPES.values() if kind.coding is not None})
# Which fields of a block are float16. Their products with small whole numbers cannot overflow float32. Blocks of other
# types are checked by their values.
_HALVES: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS"), (0,)),
        **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 1)),
        "Q2_K": (2, 3),
        "Q3_K": (3,),
        "Q6_K": (3,),
    }
)


def check_finite(file: TensorFile, name: str) -> None:
    """Raises WeightError if a tensor of the file holds a number that is not finite; names it and the first place."""
    info = file.tensors[name]
    count, first = 0, ""
    for start, numbers, width in _numbers(file, name):
        if not bool(numbers.isfinite().all()):
            found = (~numbers.isfinite()).nonzero()
            row, column = divmod(start + int(found[0, 0]) * width, info.shape[-1] if info.shape else 1)
            count += len(found)
            stretch = f"{column}" if width == 1 else f"{column} to {column + width - 1} (a scale of theirs)"
            first = first or f"{_word(numbers[tuple(found[0])])} in row {row}, column {stretch}"
    if count:
        what = "number that is" if count == 1 else "numbers that are"
        raise WeightError(
            f"tensor {shown(name)} in {info.place} holds {count} {what} not finite, the first one {first}",
            hint="fetch the file again, or convert it anew from a source without them; check=off loads it as it is",
        )


def _numbers(file: TensorFile, name: str) -> Iterator[tuple[int, Tensor, int]]:
    """Stretches of a tensor: index of the first element, floats (n, ..), and how many elements each of n stands for."""
    info, raw = file.tensors[name], file.raw(name)
    kind = _PACKED.get(info.type)
    if kind is None:
        stored = file.read(name, None)
        if not stored.is_floating_point():
            return
        flat, step = stored.reshape(-1), CHUNK_BYTES // stored.element_size()
        for start in range(0, len(flat), step):
            yield (
                start,
                flat[start : start + step].float() if stored.element_size() == 1 else flat[start : start + step],
                1,
            )
            file.let_go(name, start * stored.element_size(), (start + step) * stored.element_size())
        return
    step = CHUNK_BYTES // kind.block_bytes * kind.block_bytes
    for start in range(0, raw.nbytes, step):
        blocks = raw[start : start + step].view(-1, kind.block_bytes)
        yield start // kind.block_bytes * kind.block_size, _factors(blocks, kind), kind.block_size
        file.let_go(name, start, start + step)


def _factors(blocks: Tensor, kind: GgufType) -> Tensor:
    """(blocks, ..): the numbers of each block that may be infinite."""
    if kind.name not in _HALVES:
        return dequantize(blocks, kind).view(len(blocks), -1)
    fields = torch.split(blocks, list(kind.fields), dim=1)
    return torch.cat([fields[index] for index in _HALVES[kind.name]], dim=1).view(torch.float16)


def _word(number: Tensor) -> str:
    return "NaN" if bool(number.isnan()) else "infinity"
