"""What rendering one chat template may cost: steps, time, and the size of what it makes."""

from __future__ import annotations

import time
from collections.abc import ItemsView, Iterable, KeysView, ValuesView
from dataclasses import dataclass, field
from typing import Any

from jinja2.runtime import Undefined

_PLAIN = (int, float, type(None), Undefined, range)
_CONTAINERS = (list, tuple, dict, KeysView, ValuesView, ItemsView)

_ITEM_SIZE = 8
"""An item of a container costs as much as this many characters."""


class BudgetSpentError(Exception):
    """The template did more than any real one does."""


@dataclass
class Meter:
    """The budget of one rendering.

    `steps` of work, `size` characters made (items of containers included), `seconds` of time, and `weight`: what one
    value holds at most, everything below it counted as often as it stands there. A list may hold the same list twice,
    and so on down, which takes no memory until someone writes it out or compares it; the weight bounds that.
    """

    steps: int = 1_000_000
    size: int = 50_000_000
    seconds: float = 5.0
    weight: int = 1_000_000
    _deadline: float = field(init=False)
    _weights: dict[int, tuple[Any, int]] = field(default_factory=dict)

    @classmethod
    def for_data(cls, *data: Any) -> Meter:
        """Return the budget for rendering `data`: a template may do more where the caller brings more."""
        meter = cls(weight=1 << 62)
        given = sum(map(meter._weigh, data))
        return cls(size=cls.size + 50 * given, weight=cls.weight + 4 * given)

    def __post_init__(self) -> None:
        self._deadline = time.monotonic() + self.seconds

    def step(self) -> None:
        """Count one piece of work of bounded size."""
        self.steps -= 1
        if self.steps < 0:
            raise BudgetSpentError("too many steps")
        if time.monotonic() > self._deadline:
            raise BudgetSpentError(f"more than {self.seconds:g} seconds")

    def grow(self, value: Any) -> Any:
        """Count something just made, and return it."""
        if isinstance(value, (str, *_CONTAINERS)):
            self.reserve(len(value) if isinstance(value, str) else _ITEM_SIZE * len(value))
            if self._weigh(value) > self.weight:
                raise BudgetSpentError("a value is too large")
        return value

    def reserve(self, size: int) -> None:
        """Count something about to be made."""
        self.size -= size
        if self.size < 0:
            raise BudgetSpentError("too much text")

    def _weigh(self, value: Any) -> int:
        if isinstance(value, str):
            return len(value) + 1
        if isinstance(value, _PLAIN):
            return 1
        if not isinstance(value, _CONTAINERS):
            # Such as a namespace, whose weight could change later.
            raise BudgetSpentError(f"an object of type {type(value).__name__} inside a list")
        if id(value) not in self._weights:
            parts: Iterable[Any] = [*value, *value.values()] if isinstance(value, dict) else value
            weight = 1 + sum(map(self._weigh, parts))
            # The value itself is kept too, so that its identity is not given to another one.
            self._weights[id(value)] = value, weight
        return self._weights[id(value)][1]
