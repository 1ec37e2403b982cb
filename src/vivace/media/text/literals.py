"""Finds fixed strings in a text, leftmost first and longest at a place: how special and added tokens are cut out.

A vocabulary may hold thousands of such strings (Gemma: 6,414), so they are looked up by first character and length
rather than tried one by one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator


class LiteralMatcher:
    """Looks for any of `literals`; empty ones are ignored."""

    def __init__(self, literals: Iterable[str]) -> None:
        self._literals = frozenset(filter(None, literals))
        lengths: dict[str, set[int]] = {}
        for literal in self._literals:
            lengths.setdefault(literal[0], set()).add(len(literal))
        self._lengths = {first: sorted(sizes, reverse=True) for first, sizes in lengths.items()}
        self._starts = re.compile("[" + "".join(map(re.escape, sorted(lengths))) + "]") if lengths else None

    def find(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of each match; matches do not overlap."""
        position = 0
        while self._starts is not None and (candidate := self._starts.search(text, position)):
            start = position = candidate.start()
            for length in self._lengths[text[start]]:
                literal = text[start : start + length]  # shorter at the end of the text
                if literal in self._literals:
                    position = start + len(literal)
                    yield start, position
                    break
            else:
                position += 1

    def split(self, text: str) -> Iterator[tuple[str, bool]]:
        """Yield the pieces of `text` in order, each with whether it is one of the literals; no piece is empty."""
        position = 0
        for start, end in self.find(text):
            if start > position:
                yield text[position:start], False
            yield text[start:end], True
            position = end
        if position < len(text):
            yield text[position:], False
