"""What every technique has: a frozen Config whose fields check themselves, with the null value as default.

A technique is one file with a `Config`, a function `make(config, parts)` and the maths. Its file name is its registered
name, its CLI value and its anchor in the docs. Configs travel in requests and files; what `make` returns does not.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

from vivace.errors import InvalidRequest, UnknownName, nearest

Scope = Literal["request", "model", "engine"]
T = TypeVar("T")
C = TypeVar("C", bound="TechniqueConfig")


class TechniqueConfig:
    """Base of the frozen Config dataclasses. The default of every field is the technique's null value: with it the
    technique equals "off" bit for bit, and whoever applies techniques leaves it out.

    name        file name and registered name
    origin      paper or first implementation
    scope       who chooses it: a request, or whoever loads the model or starts the engine
    is_exact    false if it trades accuracy against the plain computation for speed or memory
    conflicts   names of techniques that it cannot be combined with
    """

    name: ClassVar[str]
    origin: ClassVar[str]
    scope: ClassVar[Scope] = "request"
    is_exact: ClassVar[bool] = True
    conflicts: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):  # type: ignore[arg-type]  # the subclasses are the dataclasses
            check = item.metadata["check"]
            object.__setattr__(self, item.name, check(getattr(self, item.name), self.path(item.name), item.default))

    @classmethod
    def path(cls, field: str) -> str:
        """How errors name a field: the technique's name alone where it has the one field `value`."""
        return cls.name if field == "value" else f"{cls.name}.{field}"

    @classmethod
    def parse(cls: type[C], values: Mapping[str, Any]) -> C:
        """Make a config of field values; raises UnknownName for a field that does not exist."""
        known = [item.name for item in dataclasses.fields(cls)]  # type: ignore[arg-type]
        for name in values:
            if name not in known:
                path = f"{cls.name}.{name}"
                raise UnknownName(f"{cls.name} has no field '{name}'", field=path, hint=nearest(name, known))
        return cls(**values)

    @property
    def is_null(self) -> bool:
        """Whether the technique is off."""
        return self == type(self)()


def option(default: T, check: Callable[[Any, str, Any], Any]) -> T:
    """A field of a Config: its null value, and what it accepts."""
    return dataclasses.field(default=default, metadata={"check": check})


@dataclass(frozen=True)
class Real:
    """Accepts a finite number with low <= x <= high and x > above."""

    low: float | None = None
    high: float | None = None
    above: float | None = None

    def __call__(self, value: Any, field: str, null: Any) -> float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not is_number or not self._holds(value):
            raise _refusal(value, field, str(self), null)
        return float(value)

    def __str__(self) -> str:
        return "a number" + _limits(self.low, self.high, self.above)

    def _holds(self, value: float) -> bool:
        return (
            (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
            and (self.above is None or value > self.above)
        )


@dataclass(frozen=True)
class Whole:
    """Accepts a whole number with low <= n <= high."""

    low: int | None = None
    high: int | None = None

    def __call__(self, value: Any, field: str, null: Any) -> int:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or (self.low is not None and value < self.low) or (self.high is not None and value > self.high):
            raise _refusal(value, field, str(self), null)
        return int(value)

    def __str__(self) -> str:
        return "a whole number" + _limits(self.low, self.high, None)


@dataclass(frozen=True)
class Flag:
    """Accepts true or false."""

    def __call__(self, value: Any, field: str, null: Any) -> bool:
        if not isinstance(value, bool):
            raise _refusal(value, field, str(self), null)
        return value

    def __str__(self) -> str:
        return "true or false"


def _limits(low: float | None, high: float | None, above: float | None) -> str:
    parts = []
    if above is not None:
        parts.append(f"above {above:g}")
    if low is not None and high is not None:
        return f" from {low:g} to {high:g}"
    if low is not None:
        parts.append(f"of at least {low:g}")
    if high is not None:
        parts.append(f"of at most {high:g}")
    return " " + " and ".join(parts) if parts else ""


def _refusal(value: Any, field: str, expected: str, null: Any) -> InvalidRequest:
    came = repr(value)
    shown = came if len(came) <= 60 else came[:57] + "..."
    return InvalidRequest(f"{field} is {shown}, expected {expected}", field=field, hint=f"{null} switches it off")
