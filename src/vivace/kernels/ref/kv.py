"""Reference of the store operations: `kv_copy`, `kv_move`, `kv_rotate`; how numbers are rounded into stores and read.

"f32", "f16", "bf16": numbers are rounded to the nearest, ties to even, when stored, and widened when read. "i8": with
a = the largest |x| of a key or value, s = a / 127 and codes c = round(x * (127 / a)), ties to even; read as c * s.
Where s is below the smallest normal number all becomes zero, and NaN where a is no finite number.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vivace.kernels.ops import KVStore, Pairing
from vivace.kernels.ref.rope import rope

# Formats whose store keeps each slot's heads side by side.
PLAIN_FORMATS = ("f32", "bf16", "f16", "i8")


def read_slots(store: KVStore, slots: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of some slots, float32: (slots, kv_heads, key_dim), (slots, kv_heads, value_dim)."""
    keys, values, *scales = (part.index_select(0, slots).float() for part in _parts(store))
    if scales:
        keys, values = keys * scales[0][..., None], values * scales[1][..., None]
    return keys, values


def write_slots(store: KVStore, slots: Tensor, *, keys: Tensor | None = None, values: Tensor | None = None) -> None:
    """Round keys (slots, kv_heads, key_dim) and values (slots, kv_heads, value_dim) into their slots."""
    codes, scales = _parts(store)[:2], _parts(store)[2:]
    for index, new in enumerate((keys, values)):
        if new is None:
            continue
        if scales:
            new, scale = round_to_bytes(new)
            scales[index].index_copy_(0, slots, scale)
        codes[index].index_copy_(0, slots, new.to(codes[index].dtype))


def round_to_bytes(x: Tensor) -> tuple[Tensor, Tensor]:
    """Codes and scales of vectors (..., dim): int8 (..., dim), float32 (...)."""
    largest = x.abs().amax(-1)
    scale = largest / 127
    is_kept = largest.isfinite() & (scale >= torch.finfo(torch.float32).tiny)
    # A number divided by a tensor would be the number times a rounded reciprocal.
    inverse = torch.where(is_kept, torch.full_like(largest, 127) / largest, 0.0)
    codes = torch.where(is_kept[..., None], (x * inverse[..., None]).round(), 0.0).to(torch.int8)
    return codes, torch.where(largest.isfinite(), torch.where(is_kept, scale, 0.0), float("nan"))


def kv_copy(store: KVStore, sources: Tensor, targets: Tensor) -> None:
    """Copy whole pages one after another, so that a page written by one pair may be the source of a later one."""
    for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
        for part in _tensors(store):
            part[target].copy_(part[source])


def kv_move(store: KVStore, sources: Tensor, targets: Tensor) -> None:
    """Copy single slots; all reads happen before the first write."""
    for part in _parts(store):
        part[targets] = part[sources]


def kv_rotate(store: KVStore, slots: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing) -> None:
    """Rotate stored keys in place by further angles. cos, sin (slots, d)."""
    keys, _ = read_slots(store, slots)
    write_slots(store, slots, keys=rope(keys, cos, sin, pairing))


def _parts(store: KVStore) -> list[Tensor]:
    """Views by slot (pages * page_size, kv_heads, ...) of keys and values, then of their scales if there are any."""
    assert store.format in PLAIN_FORMATS, f"the reference reads {PLAIN_FORMATS} stores, not {store.format}"
    return [part.view(-1, *part.shape[2:]) for part in _tensors(store)]


def _tensors(store: KVStore) -> list[Tensor]:
    parts = (store.keys, store.values, store.key_scales, store.value_scales)
    return [part for part in parts if part is not None]
