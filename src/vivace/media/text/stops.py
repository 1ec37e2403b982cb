"""Stop strings in streamed text: found at any cut of the stream, with nothing held back that could not begin one.

All stop strings are matched at once by an Aho-Corasick automaton (Aho, Corasick: "Efficient String Matching", 1975).
Its state is the longest suffix of the text that begins some stop string, which is just what has to be held back.

Of several stop strings the one that is complete first wins; of those complete at the same character the longest. This
does not depend on how the text arrives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from vivace.errors import InvalidRequest


@dataclass(frozen=True)
class StopMatch:
    """A stop string found in the stream; `start` and `end` are character positions counted from its beginning."""

    stop: str
    start: int
    end: int


@dataclass
class _State:
    """A node of the automaton: a prefix of some stop string. `found` is the longest stop string that ends here."""

    depth: int
    found: str = ""
    fallback: int = 0
    next: dict[str, int] = field(default_factory=dict)


class StopMatcher:
    """Feed text, get back what may be shown. After a match nothing more comes out.

    With `include_stop` the stop string itself is shown too. `match` is None until a stop string is complete.
    """

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        """Raises InvalidRequest for an empty stop string, which would match everywhere."""
        if any(not stop for stop in stops):
            raise InvalidRequest(
                "a stop string is empty", field="stop", hint="give at least one character or leave it out"
            )
        self._states = _build_automaton(stops)
        self._include_stop = include_stop
        self._state = 0
        self._held = ""
        self._num_chars = 0
        self.match: StopMatch | None = None

    @property
    def held(self) -> str:
        """The text held back: the longest suffix that is a proper prefix of some stop string."""
        return self._held

    def feed(self, text: str) -> str:
        """Return the text that may be shown now."""
        if self.match is not None:
            return ""
        if len(self._states) == 1:
            self._num_chars += len(text)
            return text
        for index, char in enumerate(text):
            self._state = self._step(self._state, char)
            if found := self._states[self._state].found:
                end = self._num_chars + index + 1
                self.match = StopMatch(found, end - len(found), end)
                pending = self._held + text[: index + 1]
                self._held = ""
                return pending if self._include_stop else pending[: len(pending) - len(found)]
        self._num_chars += len(text)
        pending = self._held + text
        cut = len(pending) - self._states[self._state].depth
        self._held = pending[cut:]
        return pending[:cut]

    def flush(self) -> str:
        """Return the held text: the stream ended by length or end of sequence, so no stop string will be completed."""
        held, self._held, self._state = self._held, "", 0
        return held

    def _step(self, state: int, char: str) -> int:
        while state and char not in self._states[state].next:
            state = self._states[state].fallback
        return self._states[state].next.get(char, 0)


def _build_automaton(stops: Sequence[str]) -> list[_State]:
    """Return the states, the first being "nothing matched"; each falls back to its longest proper suffix."""
    states = [_State(depth=0)]
    for stop in stops:
        at = 0
        for char in stop:
            if char not in states[at].next:
                states[at].next[char] = len(states)
                states.append(_State(depth=states[at].depth + 1))
            at = states[at].next[char]
        states[at].found = stop
    queue = deque(states[0].next.values())
    while queue:
        at = queue.popleft()
        for char, child in states[at].next.items():
            queue.append(child)
            suffix = states[at].fallback
            while suffix and char not in states[suffix].next:
                suffix = states[suffix].fallback
            states[child].fallback = states[suffix].next.get(char, 0)
            states[child].found = states[child].found or states[states[child].fallback].found
    return states
