"""A weight source in memory, for layers that load themselves."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vivace.errors import WeightError
from vivace.kernels.ops import Rows
from vivace.kernels.quantized import PlainMatrix, StoredMatrix
from vivace.kernels.select import resolve
from vivace.layers.context import Context
from vivace.layers.linear import Loader


class FakeWeights:
    """Tensors by name; remembers what was taken."""

    def __init__(self, **tensors: Tensor) -> None:
        self.tensors = {name.replace("__", "."): tensor for name, tensor in tensors.items()}
        self.taken: list[str] = []

    def has(self, name: str) -> bool:
        return name in self.tensors

    def take(self, name: str, shape: Sequence[int] | None = None) -> Tensor:
        if name not in self.tensors:
            raise WeightError(f"no {name}")
        assert shape is None or tuple(self.tensors[name].shape) == tuple(shape), name
        self.taken.append(name)
        return self.tensors[name]

    def take_optional(self, name: str, shape: Sequence[int] | None = None) -> Tensor | None:
        return self.take(name, shape) if self.has(name) else None

    def take_stored(self, name: str, shape: tuple[int, int]) -> StoredMatrix:
        return PlainMatrix(self.take(name, shape))

    def take_own(self, name: str, source: str, shape: tuple[int, int]) -> StoredMatrix | None:
        own = self.take_stored(name, shape)
        return None if torch.equal(self.tensors[name], self.tensors[source]) else own

    def take_fused(
        self, names: Sequence[str], shapes: Sequence[Sequence[int]] | None = None
    ) -> tuple[Tensor, dict[str, slice]]:
        parts = [self.take(name, shapes[index] if shapes else None) for index, name in enumerate(names)]
        ends = [sum(len(part) for part in parts[: index + 1]) for index in range(len(parts))]
        slices = {name: slice(end - len(part), end) for name, part, end in zip(names, parts, ends, strict=True)}
        return torch.cat(parts), slices


def loader(weights: FakeWeights) -> Loader:
    return Loader(weights, resolve(choice="ref"))


def context() -> Context:
    """A step for layers that look at no rows."""
    empty = torch.zeros(0, dtype=torch.int32)
    return Context(resolve(choice="ref"), Rows(empty.view(0, 1), empty, empty, (0,), (), empty, {}))
