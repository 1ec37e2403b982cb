"""Memory layouts of stores: how keys and values stand in pages, and how they are read back.

"f32", "f16", "bf16": plain, each slot's heads side by side, as KVStore tells. "f32_panel16" and its half-precision kin:
each head of a page side by side, keys (pages, kv_heads, page_size / 16, key_dim, 16), so that one vector register holds
one dim of 16 keys, and values (pages, kv_heads, page_size, value_dim). Native kernels read both; panels they read as
they stand, plain pages they turn first. "i8" has a float32 scale for each key and value beside the bytes: plain (pages,
page_size, kv_heads), in panels (pages, kv_heads, page_size).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from vivace.errors import ConfigError, nearest
from vivace.kernels.layout import PANEL
from vivace.kernels.ops import KVStore, StoreShape
from vivace.kernels.rooms import huge_bytes

STORE_DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "i8": torch.int8}
)
SCALE_BYTES = 4
_SUFFIX = f"_panel{PANEL}"


def plain_store(shape: StoreShape, store_format: str, device: torch.device) -> KVStore:
    """A plain store of zeros."""
    dtype, slots = store_dtype(store_format), (shape.pages, shape.page_size, shape.kv_heads)
    keys, values = (_zeros((*slots, dim), dtype, device) for dim in (shape.key_dim, shape.value_dim))
    return KVStore(keys, values, store_format, *_scales(dtype, (*slots,), device))


def panel_store(shape: StoreShape, store_format: str, device: torch.device) -> KVStore:
    """A store of zeros in panels; a plain one where panels do not fill the pages."""
    panels, rest = divmod(shape.page_size, PANEL)
    if rest:
        return plain_store(shape, store_format, device)
    dtype, heads = store_dtype(store_format), (shape.pages, shape.kv_heads)
    keys = _zeros((*heads, panels, shape.key_dim, PANEL), dtype, device)
    values = _zeros((*heads, shape.page_size, shape.value_dim), dtype, device)
    return KVStore(keys, values, store_format + _SUFFIX, *_scales(dtype, (*heads, shape.page_size), device))


def to_panels(store: KVStore) -> KVStore:
    """The contents of a plain store, in panels. Its page size is a multiple of 16."""
    assert store.format in STORE_DTYPES, f"{store.format} is not plain"
    pages, page_size, heads, dim = store.keys.shape
    keys = store.keys.view(pages, page_size // PANEL, PANEL, heads, dim).permute(0, 3, 1, 4, 2)
    return _turned(store, keys, store.format + _SUFFIX)


def from_panels(store: KVStore) -> KVStore:
    """The contents of any store, plain: for tests and for whoever reads keys without a kernel."""
    if store.format in STORE_DTYPES:
        return store
    keys = store.keys.permute(0, 2, 4, 1, 3).flatten(1, 2)
    return _turned(store, keys, store.format.removesuffix(_SUFFIX))


def vector_bytes(dim: int, store_format: str) -> int:
    """Bytes of one key or value of `dim` numbers, its scale included. Raises ConfigError for an unknown format."""
    dtype = store_dtype(store_format)
    return dim * dtype.itemsize + (SCALE_BYTES if dtype == torch.int8 else 0)


def store_dtype(store_format: str) -> torch.dtype:
    """What a number is kept as. Raises ConfigError for an unknown format."""
    if store_format not in STORE_DTYPES:
        raise ConfigError(f"unknown KV store format '{store_format}'", hint=nearest(store_format, STORE_DTYPES))
    return STORE_DTYPES[store_format]


def _turned(store: KVStore, keys: Tensor, store_format: str) -> KVStore:
    """These keys, and the rest of a store with page_size and kv_heads exchanged."""
    parts = (store.values, store.key_scales, store.value_scales)
    values, *scales = (None if part is None else part.transpose(1, 2).contiguous() for part in parts)
    assert values is not None
    return KVStore(keys.contiguous(), values, store_format, *scales)


def _scales(dtype: torch.dtype, shape: tuple[int, ...], device: torch.device) -> tuple[Tensor, ...]:
    """Scales of keys and of values, where they have any."""
    return tuple(_zeros(shape, torch.float32, device) for _ in "kv") if dtype == torch.int8 else ()


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros in fresh memory of the operating system; torch.zeros would write, and so occupy, all of it on a CPU.

    In huge pages: what one step reads stands far apart, and small pages would cost more time than the reading."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    num_bytes = math.prod(shape) * dtype.itemsize
    try:
        return huge_bytes(num_bytes).view(dtype).view(shape)
    except (OSError, OverflowError, MemoryError) as error:
        message = f"the system does not give {num_bytes} bytes for keys or values of one layer: {error}"
        raise ConfigError(message, hint="lower kv_bytes") from error
