"""Reference of the store operations: `kv_copy`, `kv_move`, `kv_rotate`."""

from __future__ import annotations

from torch import Tensor

from vivace.kernels.ops import KVStore, Pairing
from vivace.kernels.ref.rope import rope

# Formats whose store is a plain tensor: values are rounded to it when stored and widened when read.
PLAIN_FORMATS = ("f32", "bf16", "f16")


def slots_of(store: KVStore) -> tuple[Tensor, Tensor]:
    """Views of keys and values by slot: (pages * page_size, kv_heads, dim)."""
    assert store.format in PLAIN_FORMATS, f"the reference reads {PLAIN_FORMATS} stores, not {store.format}"
    keys, values = store.keys, store.values
    return keys.view(-1, *keys.shape[2:]), values.view(-1, *values.shape[2:])


def kv_copy(store: KVStore, sources: Tensor, targets: Tensor) -> None:
    """Copy whole pages one after another, so that a page written by one pair may be the source of a later one."""
    for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
        store.keys[target].copy_(store.keys[source])
        store.values[target].copy_(store.values[source])


def kv_move(store: KVStore, sources: Tensor, targets: Tensor) -> None:
    """Copy single slots; all reads happen before the first write."""
    for slots in slots_of(store):
        slots[targets] = slots[sources]


def kv_rotate(store: KVStore, slots: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing) -> None:
    """Rotate stored keys in place by further angles. cos, sin (slots, d)."""
    keys, _ = slots_of(store)
    keys[slots] = rope(keys[slots].float(), cos, sin, pairing).to(keys.dtype)
