"""What a decoder keeps of the past, as data: the key-value layout of its layers, its page groups and its stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vivace.engine.batch import Keep, PageGroup
from vivace.kernels.ops import KVStore, Ops, StoreShape
from vivace.kernels.store import vector_bytes

FULL = "full"  # page group of layers that see everything
WINDOW = "window"  # page group of layers that see the last units only


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

    def unit_bytes(self, store_format: str) -> int:
        """Bytes kept per unit."""
        return self.kv_heads * sum(vector_bytes(dim, store_format) for dim in (self.key_dim, self.value_dim))


Layout = tuple[LayerState, ...]  # by layer index


def page_groups(layout: Sequence[LayerState], page_size: int, store_format: str = "f32") -> tuple[PageGroup, ...]:
    """The page groups of a layout: "full" if any layer sees everything, "window" if any sees the last units only.

    unit_bytes of a group is the sum over its layers.
    """
    windows = {layer.window for layer in layout if layer.window is not None}
    assert len(windows) <= 1, f"one window per model, not {sorted(windows)}"
    groups = []
    for name in (FULL, WINDOW):
        unit_bytes = sum(layer.unit_bytes(store_format) for layer in layout if layer.group == name)
        if unit_bytes and name == FULL:
            groups.append(PageGroup(FULL, unit_bytes, page_size))
        elif unit_bytes:
            groups.append(PageGroup(WINDOW, unit_bytes, page_size, Keep.LAST, windows.pop()))
    return tuple(groups)


def make_stores(
    layout: Sequence[LayerState], pages: Mapping[str, int], page_size: int, ops: Ops, store_format: str = "f32"
) -> tuple[KVStore, ...]:
    """One store per layer, as `ops` want it. `pages` counts the usable pages per group, as Lane.pages does; page 0 is
    added.

    Pages start as zeros: the operating system hands out the memory when a page is first written.
    """
    shapes = [
        StoreShape(pages[layer.group] + 1, page_size, layer.kv_heads, layer.key_dim, layer.value_dim)
        for layer in layout
    ]
    return tuple(ops.make_store(shape, store_format) for shape in shapes)
