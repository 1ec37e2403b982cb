"""What a forward pass receives besides its input: the operations, the rows of the step, and the state of each layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from vivace.kernels.ops import KVStore, Ops, Rows

Tap = Callable[[str, Tensor], None]


@dataclass(frozen=True, eq=False)
class Context:
    """One step as the layers see it.

    ops     the bound operations
    rows    the rows of the step
    stores  the key-value store of each layer, by layer index (empty for encoders)
    angles  cos and sin per rotary table name, (rows, d) each: computed once a step by layers.rope
    tap     called with named tensors when somebody watches (runtime.probe), else None
    """

    ops: Ops
    rows: Rows
    stores: Sequence[KVStore] = ()
    angles: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    tap: Tap | None = None

    def watch(self, name: str, value: Tensor) -> Tensor:
        """Show a tensor to whoever watches, and return it."""
        if self.tap is not None:
            self.tap(name, value)
        return value
