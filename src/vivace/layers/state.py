"""What a decoder keeps of the past, as data: the key-value layout of its layers, its page groups and its stores."""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch

from vivace.engine.batch import Keep, PageGroup
from vivace.errors import ConfigError, nearest
from vivace.kernels.ops import KVStore

FULL = "full"  # page group of layers that see everything
WINDOW = "window"  # page group of layers that see the last units only

# Formats whose store is a plain tensor; packed ones belong to the techniques that read them.
STORE_DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
)


@dataclass(frozen=True)
class LayerState:
    """What one attention layer keeps of each unit: `kv_heads` keys of `key_dim` and values of `value_dim` numbers.

    window  units a row sees, itself included; None for all. It decides the page group.
    """

    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None = None

    @property
    def group(self) -> str:
        """The page group that the layer's pages belong to."""
        return FULL if self.window is None else WINDOW

    @property
    def unit_values(self) -> int:
        """Numbers kept per unit."""
        return self.kv_heads * (self.key_dim + self.value_dim)


Layout = tuple[LayerState, ...]  # by layer index


def page_groups(layout: Sequence[LayerState], page_size: int, store_format: str = "f32") -> tuple[PageGroup, ...]:
    """The page groups of a layout: "full" if any layer sees everything, "window" if any sees the last units only.

    unit_bytes of a group is the sum over its layers.
    """
    value_bytes = _store_dtype(store_format).itemsize
    windows = {layer.window for layer in layout if layer.window is not None}
    assert len(windows) <= 1, f"one window per model, not {sorted(windows)}"
    groups = []
    for name in (FULL, WINDOW):
        unit_bytes = sum(layer.unit_values for layer in layout if layer.group == name) * value_bytes
        if unit_bytes and name == FULL:
            groups.append(PageGroup(FULL, unit_bytes, page_size))
        elif unit_bytes:
            groups.append(PageGroup(WINDOW, unit_bytes, page_size, Keep.LAST, windows.pop()))
    return tuple(groups)


def make_stores(
    layout: Sequence[LayerState],
    pages: Mapping[str, int],
    page_size: int,
    store_format: str = "f32",
    device: torch.device | str = "cpu",
) -> tuple[KVStore, ...]:
    """One store per layer. `pages` counts the usable pages per group, as Lane.pages does; page 0 is added.

    Pages start as zeros: the operating system hands out the memory when a page is first written.
    """
    dtype = _store_dtype(store_format)
    stores = []
    for layer in layout:
        shape = (pages[layer.group] + 1, page_size, layer.kv_heads)
        keys = _zeros((*shape, layer.key_dim), dtype, torch.device(device))
        values = _zeros((*shape, layer.value_dim), dtype, torch.device(device))
        stores.append(KVStore(keys, values, store_format))
    return tuple(stores)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros in fresh memory of the operating system; torch.zeros would write, and so occupy, all of it on a CPU."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    num_bytes = math.prod(shape) * dtype.itemsize
    try:
        memory = mmap.mmap(-1, num_bytes)
    except (OSError, OverflowError) as error:
        message = f"the system does not give {num_bytes} bytes for keys or values of one layer: {error}"
        raise ConfigError(message, hint="lower kv_bytes") from error
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def _store_dtype(store_format: str) -> torch.dtype:
    if store_format not in STORE_DTYPES:
        raise ConfigError(f"unknown KV store format '{store_format}'", hint=nearest(store_format, STORE_DTYPES))
    return STORE_DTYPES[store_format]
