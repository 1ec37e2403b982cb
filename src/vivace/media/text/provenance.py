"""Text that remembers where each character came from, so that a chat template may do what it likes with it.

A template gets the caller's text as `MarkedText`, a `str` whose characters each carry a mark. Cutting, joining,
trimming and replacing keep the marks; an operation that is not followed character by character marks its whole result
as the caller's. So a mark of the caller is never lost, and only what the template itself wrote stays unmarked.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Any, SupportsIndex

TEMPLATE, CALLER, CONTINUED = 0, 1, 2
"""Marks: written by the template; given by the caller; put by us where an answer is to go on."""

_LINE_END = re.compile(r"(?:\r\n|[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029])\Z")


class MarkedText(str):
    """A string with one mark per character. Equality and hash are those of the plain string."""

    _marks: bytes

    def __new__(cls, text: str, marks: bytes) -> MarkedText:
        assert len(text) == len(marks)
        made = super().__new__(cls, text)
        made._marks = marks
        return made

    def __str__(self) -> str:
        return self

    def __add__(self, other: str) -> MarkedText:
        if not isinstance(other, str):
            return NotImplemented
        return MarkedText(str.__add__(self, other), self._marks + marks_of(other))

    def __radd__(self, other: str) -> MarkedText:
        if not isinstance(other, str):
            return NotImplemented
        return MarkedText(str.__add__(other, self), marks_of(other) + self._marks)

    def __mul__(self, count: SupportsIndex) -> MarkedText:
        return MarkedText(str.__mul__(self, count), self._marks * count.__index__())

    __rmul__ = __mul__

    def __getitem__(self, key: SupportsIndex | slice) -> MarkedText:
        marks = self._marks[key] if isinstance(key, slice) else bytes([self._marks[key]])
        return MarkedText(str.__getitem__(self, key), marks)

    def __iter__(self) -> Iterator[MarkedText]:
        return (self[index] for index in range(len(self)))

    def strip(self, chars: str | None = None) -> MarkedText:
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: str | None = None) -> MarkedText:
        return self[len(self) - len(str.lstrip(self, chars)) :]

    def rstrip(self, chars: str | None = None) -> MarkedText:
        return self[: len(str.rstrip(self, chars))]

    def removeprefix(self, prefix: str) -> MarkedText:
        return self[len(prefix) :] if self.startswith(prefix) else self

    def removesuffix(self, suffix: str) -> MarkedText:
        return self[: len(self) - len(suffix)] if suffix and self.endswith(suffix) else self

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[Any]:
        return self._locate(str.split(self, sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[Any]:
        return self._locate(str.rsplit(self, sep, maxsplit), sep)

    def splitlines(self, keepends: bool = False) -> list[Any]:
        lines = self._locate(str.splitlines(self, keepends=True), "")
        return lines if keepends else [line[: len(_LINE_END.sub("", line))] for line in lines]

    def partition(self, sep: str) -> tuple[Any, Any, Any]:
        return self._around(str.find(self, sep), sep) if sep in self else (self, self[:0], self[:0])

    def rpartition(self, sep: str) -> tuple[Any, Any, Any]:
        return self._around(str.rfind(self, sep), sep) if sep in self else (self[:0], self[:0], self)

    def replace(self, old: str, new: str, count: SupportsIndex = -1) -> MarkedText:
        if not old:
            return mark_whole(str.replace(self, old, new, count))
        return MarkedText("", b"") + join(new, self.split(old, count))

    def join(self, parts: Iterable[str]) -> MarkedText:
        return MarkedText("", b"") + join(self, parts)

    def lower(self) -> MarkedText:
        return self._same_length(str.lower(self))

    def upper(self) -> MarkedText:
        return self._same_length(str.upper(self))

    def capitalize(self) -> MarkedText:
        return self._same_length(str.capitalize(self))

    def title(self) -> MarkedText:
        return self._same_length(str.title(self))

    def _locate(self, parts: list[str], sep: str | None) -> list[Any]:
        """Return the parts, found again in order, with their marks."""
        found: list[Any] = []
        position = 0
        for part in parts:
            # Between parts stands `sep`, or with None whitespace, in which no part can begin.
            start = position if sep is not None else self.index(part, position)
            found.append(self[start : start + len(part)])
            position = start + len(part) + len(sep or "")
        return found

    def _around(self, at: int, sep: str) -> tuple[Any, Any, Any]:
        return self[:at], self[at : at + len(sep)], self[at + len(sep) :]

    def _same_length(self, text: str) -> MarkedText:
        """Return `text` with these marks; where a change of case changed the length, all of it is the caller's."""
        return MarkedText(text, self._marks) if len(text) == len(self) else mark_whole(text)


def marks_of(text: str) -> bytes:
    """Return the mark of each character; plain text is the template's."""
    return text._marks if isinstance(text, MarkedText) else bytes(len(text))


def mark_whole(text: str, mark: int = CALLER) -> MarkedText:
    """Return `text` with every character marked."""
    return MarkedText(str.__str__(text), bytes([mark]) * len(text))


def join(separator: str, parts: Iterable[str]) -> str:
    """Return the parts with `separator` between them; marked if anything in it is."""
    listed = list(parts)
    text = str.join(separator, listed)
    if not isinstance(separator, MarkedText) and not any(isinstance(part, MarkedText) for part in listed):
        return text
    return MarkedText(text, marks_of(separator).join(map(marks_of, listed)))


def is_marked(value: Any) -> bool:
    """Return whether marked text is anywhere in `value`."""
    if isinstance(value, str):
        return isinstance(value, MarkedText)
    if isinstance(value, Mapping):
        return any(is_marked(key) or is_marked(item) for key, item in value.items())
    return isinstance(value, (list, tuple, set, frozenset, KeysView, ValuesView, ItemsView)) and any(
        map(is_marked, value)
    )


def mark_data(value: Any, mark: int = CALLER) -> Any:
    """Return JSON-like data rebuilt of plain types, all text in it marked; other objects become their type's name."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return mark_whole(value, mark)
    if isinstance(value, Mapping):
        return {mark_data(key, mark): mark_data(item, mark) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [mark_data(item, mark) for item in value]
    for kind in (int, float):
        if isinstance(value, kind):
            return kind(value)
    return mark_whole(f"<{type(value).__name__}>", mark)


def mark_result(value: Any) -> Any:
    """Return what an operation that was not followed gave, with all text in it marked as the caller's."""
    if isinstance(value, str):
        return mark_whole(value)
    if isinstance(value, (list, tuple)):
        return type(value)(mark_result(item) for item in value)
    return value


def _mark_results_of(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def marked(self: MarkedText, *args: Any, **kwargs: Any) -> Any:
        return mark_result(method(self, *args, **kwargs))

    return marked


# Every other method of `str` gives wholly marked text, those of later Python versions included.
for _name in set(dir(str)) - set(vars(MarkedText)) - set(dir(object)):
    if not _name.startswith("__") or _name in ("__mod__", "__rmod__"):
        setattr(MarkedText, _name, _mark_results_of(getattr(str, _name)))
