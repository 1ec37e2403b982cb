"""What a step costs at least, as the loaded model states it: bytes of weights and of keys and values, and operations.

A step reads every weight of its linear maps once, whatever the number of rows, and each row's keys and values; each
row takes two operations per weight. These are the least a machine can do, so speed beside the ceilings tells what is
left to gain.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from torch import Tensor

from vivace.kernels.ops import LinearWeight
from vivace.lab.ceilings import Ceilings
from vivace.layers.embed import Embedding
from vivace.layers.linear import Linear


@dataclass(frozen=True)
class Costs:
    """Bytes and operations of one decoder.

    weight_bytes       read by every step, the head included
    formats            weight format -> its part of weight_bytes
    row_operations     of one row through the layers
    head_operations    of one row through the head
    unit_bytes         keys and values that attention reads per unit of context
    is_integer         whether most of the weights are integers, so that the integer ceiling counts
    """

    weight_bytes: int
    formats: dict[str, int]
    row_operations: int
    head_operations: int
    unit_bytes: int
    is_integer: bool

    def step_bytes(self, streams: int, context: float) -> float:
        """Bytes that a step of decoding streams reads, each with `context` units before it."""
        return self.weight_bytes + streams * context * self.unit_bytes

    def step_operations(self, rows: int, drawn: int) -> float:
        """Operations of a step of `rows` rows, `drawn` of which go through the head."""
        return float(rows * self.row_operations + drawn * self.head_operations)


@dataclass(frozen=True)
class Share:
    """How much of the ceiling that binds was reached: "memory", "float" or "integer"; 1.0 is all of it."""

    ceiling: str
    share: float


def costs_of(model: Any, unit_bytes: int) -> Costs:
    """The costs of a loaded decoder; `unit_bytes` over all its page groups."""
    linear = {id(weight): weight for weight in _linear_weights(model)}
    head = getattr(getattr(model, "head", None), "weight", None)
    formats: dict[str, int] = {}
    for weight in linear.values():
        formats[weight.format] = formats.get(weight.format, 0) + weight.data.nbytes
    head_operations = 0 if head is None else 2 * head.outputs * head.inputs
    operations = sum(2 * weight.outputs * weight.inputs for weight in linear.values())
    integer_bytes = sum(weight.data.nbytes for weight in linear.values() if not weight.data.is_floating_point())
    total = sum(formats.values())
    return Costs(
        total, formats, operations - head_operations, head_operations, unit_bytes, is_integer=2 * integer_bytes > total
    )


def share_of(costs: Costs, ceilings: Ceilings, step_s: float, *, step_bytes: float, step_operations: float) -> Share:
    """The larger of the shares of memory and arithmetic that a step of `step_s` seconds reached."""
    is_integer = costs.is_integer and ceilings.integers_per_s is not None
    peak = ceilings.integers_per_s if costs.is_integer and ceilings.integers_per_s else ceilings.floats_per_s
    memory = Share("memory", step_bytes / ceilings.read_bytes_per_s / step_s)
    arithmetic = Share("integer" if is_integer else "float", step_operations / peak / step_s)
    return max(memory, arithmetic, key=lambda found: found.share)


def _linear_weights(part: Any) -> Iterator[LinearWeight]:
    """Every weight of a linear map below `part`; the table of an embedding is none, unless a head shares it."""
    if isinstance(part, Linear):
        yield part.weight
    elif isinstance(part, list | tuple):
        for item in part:
            yield from _linear_weights(item)
    elif isinstance(part, LinearWeight):
        yield part
    elif is_dataclass(part) and not isinstance(part, Embedding | Tensor | type):
        for item in fields(part):
            yield from _linear_weights(getattr(part, item.name))
