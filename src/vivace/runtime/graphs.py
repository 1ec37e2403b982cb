"""A recorded step as plain data: which functions are called, in which order, on which tensors.

A program is printed (one line per call), hashed and saved. It holds no tensor: constants are names, which whoever runs
the program binds to weights and stores. The first dimension of a tensor that a step reads or writes is a count that
each run states (rows, chosen rows, sequences), so one program serves steps of any size up to its capacity.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from vivace.errors import ConfigError

Scalar = int | float | str | bool | None

DTYPE_BYTES: Mapping[str, int] = MappingProxyType({"float32": 4, "int32": 4, "int64": 8})
ALIGNMENT = 64  # bytes: results begin at whole cache lines
VERSION = 1


@dataclass(frozen=True)
class Buffer:
    """A tensor that each step fills: an input, or the result of a call. Its shape is (capacity of `count`, *sizes)."""

    name: str
    dtype: str
    count: str
    sizes: tuple[int, ...] = ()

    def describe(self) -> str:
        return f"{self.name}: {self.dtype} ({', '.join((self.count, *map(str, self.sizes)))})"


@dataclass(frozen=True)
class Ref:
    """A tensor as an argument: a constant by its name, or a buffer seen as (its count, *sizes)."""

    name: str
    sizes: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Call:
    """One call: its named arguments, `writes` of which are results, and the count that says for how many rows."""

    function: str
    count: str
    arguments: tuple[tuple[str, Scalar | Ref], ...]
    writes: tuple[str, ...]

    def refs(self) -> Iterator[Ref]:
        return (value for _, value in self.arguments if isinstance(value, Ref))

    def describe(self) -> str:
        read = [(name, value) for name, value in self.arguments if name not in self.writes]
        words = ", ".join(f"{name}={value.name if isinstance(value, Ref) else value}" for name, value in read)
        return f"{', '.join(self.writes_to())} = {self.function}({words})"

    def writes_to(self) -> list[str]:
        return [value.name for name, value in self.arguments if name in self.writes and isinstance(value, Ref)]


@dataclass(frozen=True)
class Program:
    """A recorded step.

    key        what it was recorded for: model, formats and hooks
    capacity   most of each count that a run may state
    inputs     tensors that the caller fills before a run
    buffers    results, in the order in which they are written
    constants  names of the tensors and other objects that no step changes the place of
    outputs    name -> buffer that holds its values until the next run
    """

    key: str
    capacity: Mapping[str, int]
    inputs: tuple[Buffer, ...]
    buffers: tuple[Buffer, ...]
    constants: tuple[str, ...]
    calls: tuple[Call, ...]
    outputs: Mapping[str, str]

    def __str__(self) -> str:
        lines = [f"program {self.key}", *(f"capacity {name} {most}" for name, most in self.capacity.items())]
        lines += [f"input {buffer.describe()}" for buffer in self.inputs]
        lines += [f"output {name} {buffer}" for name, buffer in self.outputs.items()]
        return "\n".join([*lines, *(call.describe() for call in self.calls)])

    @cached_property
    def digest(self) -> str:
        """SHA-256 of everything the program says."""
        return hashlib.sha256(self._json().encode()).hexdigest()

    def bytes_of(self, buffer: Buffer) -> int:
        """Memory of a buffer at full capacity, up to the next whole cache line."""
        size = self.capacity[buffer.count] * math.prod(buffer.sizes) * DTYPE_BYTES[buffer.dtype]
        return -(-size // ALIGNMENT) * ALIGNMENT

    def save(self, path: Path) -> None:
        path.write_text(self._json())

    @classmethod
    def load(cls, path: Path) -> Program:
        """Read what `save` wrote. Raises ConfigError for anything else."""
        try:
            return _from_dict(json.loads(path.read_text()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            hint = "record the step again"
            raise ConfigError(f"{path} is no recorded step of version {VERSION}: {error}", hint=hint) from error

    def _json(self) -> str:
        return json.dumps({"version": VERSION, **asdict(self)}, indent=1)


def place(program: Program) -> tuple[dict[str, int], int]:
    """Byte offsets of the buffers in one stretch of memory, and its size.

    A buffer lives from the call that writes it to the last one that reads it, outputs to the end; buffers that live at
    the same time do not overlap. Each takes the lowest place that is free.
    """
    last = _last_uses(program)
    buffers = {buffer.name: buffer for buffer in program.buffers}
    living: list[tuple[int, int, int]] = []  # first byte, byte after the last, last call
    offsets, total = {}, 0
    for index, call in enumerate(program.calls):
        living = [space for space in living if space[2] >= index]
        for name in call.writes_to():
            size = program.bytes_of(buffers[name])
            first = _lowest_gap(living, size)
            offsets[name] = first
            living.append((first, first + size, last[name]))
            total = max(total, first + size)
    return offsets, total


def _last_uses(program: Program) -> dict[str, int]:
    last = {ref.name: index for index, call in enumerate(program.calls) for ref in call.refs()}
    return {**last, **dict.fromkeys(program.outputs.values(), len(program.calls))}


def _lowest_gap(living: Iterable[tuple[int, int, int]], size: int) -> int:
    at = 0
    for first, end, _ in sorted(living):
        if at + size <= first:
            break
        at = max(at, end)
    return at


def _from_dict(data: dict[str, Any]) -> Program:
    if data.pop("version") != VERSION:
        raise ValueError("another version")
    for field in ("inputs", "buffers"):
        data[field] = tuple(replace(Buffer(**item), sizes=tuple(item["sizes"])) for item in data[field])
    data["calls"] = tuple(
        Call(
            item["function"],
            item["count"],
            tuple((name, _argument(value)) for name, value in item["arguments"]),
            tuple(item["writes"]),
        )
        for item in data["calls"]
    )
    return Program(**{**data, "constants": tuple(data["constants"])})


def _argument(value: Any) -> Scalar | Ref:
    if not isinstance(value, dict):
        return value  # type: ignore[no-any-return]
    return Ref(value["name"], None if value["sizes"] is None else tuple(value["sizes"]))
