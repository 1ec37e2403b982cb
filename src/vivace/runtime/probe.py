"""Named tensors of a forward pass, recorded and compared, so that the first wrong layer has a name.

`recording.tap` goes where a context takes its tap; the same pass of a peer, recorded under the same names, is the other
side of `differences`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor


@dataclass(frozen=True)
class Difference:
    """How one tensor differs: the largest absolute difference, relative to the scale of theirs, and where it is.

    reason  set when the two cannot be compared at all: missing on one side, or of another shape
    """

    name: str
    error: float = float("inf")
    relative: float = float("inf")
    index: tuple[int, ...] = ()
    reason: str = ""

    def describe(self) -> str:
        if self.reason:
            return f"{self.name}: {self.reason}"
        return f"{self.name}: differs by {self.error:.3e} ({self.relative:.3e} of the scale) at {self.index}"


class Recording:
    """Tensors in the order in which they were shown. A name shown again becomes name#2, name#3, ..."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._times: Counter[str] = Counter()

    def tap(self, name: str, tensor: Tensor) -> None:
        """Keep a copy of the tensor as it is now, on the CPU."""
        self._times[name] += 1
        times = self._times[name]
        copy = tensor.detach().to("cpu", copy=True).contiguous()
        self.tensors[name if times == 1 else f"{name}#{times}"] = copy

    def save(self, path: Path) -> None:
        """Write a safetensors file; the order is kept in the names' numbers."""
        save_file({f"{order:06d} {name}": tensor for order, (name, tensor) in enumerate(self.tensors.items())}, path)

    @classmethod
    def load(cls, path: Path) -> Recording:
        """Read what `save` wrote."""
        recording = cls()
        for key, tensor in sorted(load_file(path).items()):
            recording.tensors[key.partition(" ")[2]] = tensor
        return recording


def differences(ours: Recording, theirs: Recording, tolerance: float = 0.0) -> Iterator[Difference]:
    """Tensors of `ours`, in order, whose relative difference to `theirs` is above the tolerance or not a number."""
    for name, mine in ours.tensors.items():
        difference = _compare(name, mine, theirs.tensors.get(name))
        if not difference.relative <= tolerance:
            yield difference
    for name in theirs.tensors.keys() - ours.tensors.keys():
        yield Difference(name, reason="was not recorded on our side")


def first_difference(ours: Recording, theirs: Recording, tolerance: float = 0.0) -> Difference | None:
    """The first tensor that differs, or None."""
    return next(differences(ours, theirs, tolerance), None)


def _compare(name: str, mine: Tensor, other: Tensor | None) -> Difference:
    if other is None:
        return Difference(name, reason="was not recorded on their side")
    if mine.shape != other.shape:
        return Difference(name, reason=f"shape {tuple(mine.shape)} against {tuple(other.shape)}")
    if mine.numel() == 0 or torch.equal(mine, other):
        return Difference(name, 0.0, 0.0)
    gap = (mine.double() - other.double()).abs().nan_to_num(nan=float("inf"))
    flat = int(gap.argmax())
    error, scale = float(gap.flatten()[flat]), float(other.double().abs().max())
    index = tuple(int(axis) for axis in torch.unravel_index(torch.tensor(flat), gap.shape))
    return Difference(name, error, error / scale if scale else float("inf"), index)
