"""Matrices as files store them: what the codes of a block format mean, so that kernels can take them as they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from vivace.config import WeightFormat


@dataclass(frozen=True)
class Coding:
    """How codes become values: scale * table[code] with a table, scale * code + minimum with minima, else
    scale * (code - zero).

    bits         of a code: 2 to 6, or 8
    group        inputs that share a scale
    span         inputs that share a coarse scale
    zero         a power of two, 1 to 128
    has_minimum  each scale has a minimum, made in the same way
    has_fine     a scale is a coarse one times a fine one (int8); else it is the coarse one
    is_f32       coarse scales are float32, else float16
    table        16 values of four-bit codes, each from -128 to 127
    """

    bits: int
    group: int = 32
    span: int = 32
    zero: int = 1
    has_minimum: bool = False
    has_fine: bool = False
    is_f32: bool = False
    table: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Quantized:
    """Some rows in their parts. codes (rows, inputs) uint8; coarse (rows, inputs / span) float16 or float32; fine
    (rows, inputs / group) int8 or None; the minima likewise."""

    codes: Tensor
    coarse: Tensor
    fine: Tensor | None = None
    coarse_minimum: Tensor | None = None
    fine_minimum: Tensor | None = None

    def values(self, coding: Coding) -> Tensor:
        """(rows, inputs) float32. The order of these operations is part of the formats: it decides the last bit."""
        codes = self.codes.view(self.codes.shape[0], -1, coding.group)
        if coding.table:
            numbers = torch.tensor(coding.table, dtype=torch.float32)[codes.int()]
        else:
            numbers = codes.float() if coding.has_minimum else codes.float() - coding.zero
        values = _product(self.coarse, self.fine).unsqueeze(2) * numbers
        if self.coarse_minimum is not None:
            values = values + _product(self.coarse_minimum, self.fine_minimum).unsqueeze(2)
        return values.flatten(1)


def _keep(first: int, last: int) -> None:
    """Memory that no file stands behind is let go with its tensor."""


@dataclass(frozen=True)
class Origin:
    """Where a stored matrix comes from.

    name    the tensor of a file and what was done to it; "" for a matrix that was made in memory
    let_go  called with a first and a last row that will not be read again: their pages of the file may leave memory
    """

    name: str = ""
    let_go: Callable[[int, int], None] = _keep

    def then(self, change: str) -> Origin:
        """The origin of a matrix that is made of this one by a change."""
        return replace(self, name=self.name and f"{self.name} {change}")


IN_MEMORY = Origin()


class StoredMatrix(Protocol):
    """A matrix (outputs, inputs) as its file stores it."""

    @property
    def origin(self) -> Origin: ...

    @property
    def outputs(self) -> int: ...

    @property
    def inputs(self) -> int: ...

    @property
    def coding(self) -> Coding | None:
        """How its codes become values; None for a plain matrix."""

    @property
    def dtype(self) -> torch.dtype:
        """Of `plain`: float32 unless it is stored as float16 or bfloat16."""

    def plain(self) -> Tensor:
        """All values, (outputs, inputs)."""

    def quantized(self, first: int, last: int) -> Quantized:
        """The parts of rows first .. last - 1, for a matrix that has a coding."""


@dataclass(frozen=True, eq=False)
class PlainMatrix:
    """A matrix without codes. data (outputs, inputs), float32, float16 or bfloat16."""

    data: Tensor
    coding: Coding | None = None
    origin: Origin = IN_MEMORY

    @property
    def outputs(self) -> int:
        return self.data.shape[0]

    @property
    def inputs(self) -> int:
        return self.data.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        return self.data.dtype

    def plain(self) -> Tensor:
        return self.data

    def quantized(self, first: int, last: int) -> Quantized:
        raise AssertionError(f"rows {first} to {last} of a plain matrix have no codes")


@dataclass(frozen=True, eq=False)
class RoundedMatrix:
    """A matrix of floats that becomes codes when it is packed: w = s c, s = max |w| of 32 inputs / 127, c whole."""

    source: StoredMatrix
    coding: Coding = Coding(8, zero=128, is_f32=True)
    dtype: torch.dtype = torch.float32

    @property
    def origin(self) -> Origin:
        return self.source.origin.then("int8")

    @property
    def outputs(self) -> int:
        return self.source.outputs

    @property
    def inputs(self) -> int:
        return self.source.inputs

    def plain(self) -> Tensor:
        return self.quantized(0, self.outputs).values(self.coding)

    def quantized(self, first: int, last: int) -> Quantized:
        groups = self.source.plain()[first:last].float().view(last - first, -1, self.coding.group)
        scales = groups.abs().amax(2) / 127
        codes = torch.where(scales.unsqueeze(2) > 0, groups / scales.unsqueeze(2), 0).round() + self.coding.zero
        return Quantized(codes.flatten(1).to(torch.uint8), scales)


def kept_as(matrix: StoredMatrix, weights: WeightFormat) -> StoredMatrix:
    """The matrix as the setting `weights` says. One in codes stays as it is; int8 needs whole groups of inputs."""
    if matrix.coding is not None or weights == "stored":
        return matrix
    if weights == "bf16":
        rounded = PlainMatrix(matrix.plain().bfloat16(), origin=replace(matrix.origin.then("bf16"), let_go=_keep))
        matrix.origin.let_go(0, matrix.outputs)
        return rounded
    return matrix if matrix.inputs % RoundedMatrix.coding.group else RoundedMatrix(matrix)


def rows_of(matrix: StoredMatrix, first: int, last: int) -> Tensor:
    """The values of rows first .. last - 1, (rows, inputs) in the matrix's dtype."""
    coding = matrix.coding
    return matrix.plain()[first:last] if coding is None else matrix.quantized(first, last).values(coding)


def _product(coarse: Tensor, fine: Tensor | None) -> Tensor:
    """Scales or minima, float32 (rows, groups)."""
    if fine is None:
        return coarse.float()
    return coarse.float().repeat_interleave(fine.shape[1] // coarse.shape[1], dim=1) * fine.float()
