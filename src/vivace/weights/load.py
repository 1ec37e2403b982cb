"""Strict loading: a model takes its weights by its own names, and every tensor of the file must be accounted for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch

from vivace.errors import WeightError, nearest
from vivace.kernels.quantized import Origin, PlainMatrix, StoredMatrix
from vivace.weights.check import check_finite
from vivace.weights.files import TensorFile, shown
from vivace.weights.gguf_types import TYPES
from vivace.weights.rename import NamePattern, Rename, Spelling, spellings
from vivace.weights.stored import GgufMatrix
from vivace.weights.transforms import ROW_TRANSFORMS, TRANSFORMS

SHOWN_UNUSED = 5

_PACKED = MappingProxyType({kind.name: kind for kind in TYPES.values() if kind.coding is not None})
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


class Weights:
    """The tensors of a file under a model's canonical (Hugging Face) names.

    `rules` say how the file spells them (rename.py); `sizes` gives the numbers that their transforms need by name,
    such as {"num_heads": 9, "num_kv_heads": 3}. Each tensor may be taken once; `finish` raises if one is left.
    `is_checked` refuses a tensor that holds NaN or infinity.
    """

    def __init__(
        self,
        file: TensorFile,
        rules: Sequence[Rename] = (),
        sizes: Mapping[str, int] | None = None,
        *,
        is_checked: bool = False,
    ) -> None:
        self.file = file
        self._is_checked = is_checked
        self._rules = tuple(rules)
        self._sizes = dict(sizes or {})
        self._taken_as: dict[str, str] = {}  # name in the file -> name in the model

    def has(self, name: str) -> bool:
        """Whether the file holds the model's weight `name`."""
        return self._find(name) is not None

    def take(
        self, name: str, shape: Sequence[int] | None = None, dtype: torch.dtype | None = torch.float32
    ) -> torch.Tensor:
        """The weight `name` in `dtype` (None: as stored), marked as used.

        Raises WeightError if it is missing, was taken already, or has another shape than `shape`.
        """
        spelling = self._claim(name)
        tensor = self._read(name, spelling, shape, dtype)
        self._taken_as[spelling.name] = name
        return tensor

    def take_stored(self, name: str, shape: tuple[int, int]) -> StoredMatrix:
        """Like `take`, but as the file stores it: packed types stay packed, half precision stays half."""
        spelling = self._claim(name)
        info = self.file.tensors[spelling.name]
        kind = _PACKED.get(info.type)
        keeps_rows = all(not rule.transform or rule.transform in ROW_TRANSFORMS for rule in spelling.rules)
        raw = self.file.raw(spelling.name)
        matrix: StoredMatrix
        if kind is not None and keeps_rows and len(info.shape) == 2:
            data = self._transformed(raw.view(info.shape[0], -1), spelling)
            matrix = GgufMatrix(data, kind, self._origin(spelling, data, raw))
            self._check_shape(name, spelling, (matrix.outputs, matrix.inputs), shape)
        else:
            tensor = self._read(name, spelling, shape, None if keeps_rows else torch.float32)
            data = tensor if tensor.dtype in _FLOATS else tensor.float()
            matrix = PlainMatrix(data, origin=self._origin(spelling, data, raw))
        self._taken_as[spelling.name] = name
        return matrix

    def take_own(self, name: str, source: str, shape: tuple[int, int]) -> StoredMatrix | None:
        """Like `take_stored`, but None, and accounted for, if it equals the weight `source` byte for byte."""
        spelling, shared = self._find(name), self._find(source)
        if spelling is None or shared is None or not self._same_bytes(spelling, shared):
            return self.take_stored(name, shape)
        self._taken_as.setdefault(spelling.name, name)
        return None

    def take_optional(
        self, name: str, shape: Sequence[int] | None = None, dtype: torch.dtype | None = torch.float32
    ) -> torch.Tensor | None:
        """Like `take`, but None if the file does not hold `name`."""
        return self.take(name, shape, dtype) if self.has(name) else None

    def take_fused(
        self,
        names: Sequence[str],
        shapes: Sequence[Sequence[int]] | None = None,
        dtype: torch.dtype | None = torch.float32,
    ) -> tuple[torch.Tensor, dict[str, slice]]:
        """Several weights joined along dimension 0, and which rows belong to which name (for adapters, quantizers)."""
        parts = [self.take(name, shapes[k] if shapes else None, dtype) for k, name in enumerate(names)]
        slices, start = {}, 0
        for name, part in zip(names, parts, strict=True):
            slices[name] = slice(start, start + part.shape[0])
            start += part.shape[0]
        return torch.cat(parts), slices

    def finish(self, ignored: Sequence[str] = ()) -> None:
        """Check that every tensor of the file was taken or matches a pattern of `ignored` (names in the file).

        Raises WeightError with the first unused tensors and the nearest names that the model asked for.
        """
        patterns = [NamePattern(text) for text in ignored]
        unused = [
            name
            for name in self.file.tensors
            if name not in self._taken_as and not any(pattern.match(name) is not None for pattern in patterns)
        ]
        if not unused:
            return
        listed = ", ".join(f"{shown(name)} {list(self.file.tensors[name].shape)}" for name in unused[:SHOWN_UNUSED])
        more = ", ..." if len(unused) > SHOWN_UNUSED else ""
        known = [*self._taken_as.values(), *self._taken_as]
        raise WeightError(
            f"{len(unused)} tensors of {self.file.path.name} have no place in this model: {listed}{more}",
            hint=f"for {shown(unused[0])} {nearest(unused[0], known)}",
        )

    def _find(self, name: str) -> Spelling | None:
        for spelling in spellings(name, self._rules):
            if spelling.name in self.file.tensors:
                return spelling
        return None

    def _claim(self, name: str) -> Spelling:
        """Where the file holds `name`, which nobody took yet."""
        spelling = self._find(name)
        if spelling is None:
            raise self._missing(name)
        other = self._taken_as.get(spelling.name)
        if other is not None:
            raise WeightError(
                f"{self._where(spelling.name)} is wanted as '{name}' but was already taken as '{other}'",
                hint="each tensor feeds one weight; a tied one is asked for with take_own",
            )
        if self._is_checked:
            check_finite(self.file, spelling.name)
        return spelling

    def _read(
        self, name: str, spelling: Spelling, shape: Sequence[int] | None, dtype: torch.dtype | None
    ) -> torch.Tensor:
        tensor = self._transformed(self.file.read(spelling.name, dtype), spelling)
        self._check_shape(name, spelling, tensor.shape, shape)
        return tensor

    def _origin(self, spelling: Spelling, data: torch.Tensor, raw: torch.Tensor) -> Origin:
        """Where `data` comes from; if it is a copy of the file's bytes `raw`, these may leave memory at once."""
        described = " ".join([spelling.name, *(rule.transform for rule in spelling.rules if rule.transform)])
        file, name = self.file, spelling.name
        if data.data_ptr() != raw.data_ptr():
            file.let_go(name, 0, raw.nbytes)
            return Origin(described)
        row_bytes = raw.nbytes // max(1, len(data))
        return Origin(described, lambda first, last: file.let_go(name, first * row_bytes, last * row_bytes))

    def _transformed(self, tensor: torch.Tensor, spelling: Spelling) -> torch.Tensor:
        for rule in reversed(spelling.rules):
            if rule.transform:
                assert not rule.by or rule.by in self._sizes, f"{rule} needs the size '{rule.by}'"
                try:
                    tensor = TRANSFORMS[rule.transform](tensor, self._sizes.get(rule.by, 0))
                except WeightError as error:
                    raise WeightError(f"{self._where(spelling.name)}: {error.message}", hint=error.hint) from None
        return tensor

    def _check_shape(self, name: str, spelling: Spelling, found: Sequence[int], shape: Sequence[int] | None) -> None:
        if shape is not None and tuple(found) != tuple(shape):
            raise WeightError(
                f"{self._where(spelling.name)} has shape {list(found)}, '{name}' must have {list(shape)}",
                hint="the configuration and the weights may be of different models",
            )

    def _same_bytes(self, one: Spelling, other: Spelling) -> bool:
        a, b = self.file.tensors[one.name], self.file.tensors[other.name]
        if (a.type, a.shape) != (b.type, b.shape):
            return False
        is_same = one.name == other.name or torch.equal(self.file.raw(one.name), self.file.raw(other.name))
        for spelling in (one, other):
            self.file.let_go(spelling.name, 0, a.nbytes)
        return is_same

    def _missing(self, name: str) -> WeightError:
        names = [spelling.name for spelling in spellings(name, self._rules)]
        spelt = "" if names == [name] else f" (there: {' or '.join(names)})"
        free = [known for known in self.file.tensors if known not in self._taken_as and shown(known) == f"'{known}'"]
        return WeightError(f"{self.file.path.name} has no tensor '{name}'{spelt}", hint=nearest(names[0], free))

    def _where(self, file_name: str) -> str:
        return f"tensor {shown(file_name)} in {self.file.tensors[file_name].place}"
