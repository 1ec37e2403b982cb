"""One answer as text while its ids arrive: detokenizing, stop strings, and which token brought which piece of the text.

Everything happens id by id, so the joined result does not depend on how the ids were cut into groups.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from vivace.media.text.detokenize import Detokenizer
from vivace.media.text.stops import StopMatcher
from vivace.media.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class TextToken:
    """A generated token and the piece of the answer that it completed; joined, the pieces are the answer.

    index   its place among the generated ids
    text    "" while its character is not complete: the token that completes it brings it
    """

    index: int
    id: int
    text: str


@dataclass(frozen=True)
class Piece:
    """What became visible: text, and the tokens whose text lies in what is visible so far and was not reported yet."""

    text: str
    tokens: tuple[TextToken, ...]


class Answer:
    """The text of one answer. Feed ids as they come, then call `finish` once, unless a stop string ended it.

    count       ids taken: those after the one that completed a stop string are not
    is_stopped  a stop string is complete; nothing more becomes visible
    """

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int] = (), stops: Sequence[str] = ()) -> None:
        """Raises InvalidRequest for an empty stop string. Nothing of the prompt becomes visible: it is context."""
        self._detokenizer = Detokenizer(tokenizer, prompt_ids)
        self._stops = StopMatcher(stops)
        self._waiting: deque[tuple[int, int, str]] = deque()  # (start, id, text) of tokens not reported yet
        self._reported = 0
        self._num_chars = 0
        self._num_visible = 0
        self.count = 0

    @property
    def is_stopped(self) -> bool:
        return self._stops.match is not None

    def feed(self, ids: Sequence[int]) -> Piece:
        """What these ids make visible. Raises InvalidRequest for an id outside the vocabulary."""
        visible = []
        for token_id in ids:
            if self.is_stopped:
                break
            text = self._detokenizer.feed((token_id,))
            self.count += 1
            self._waiting.append((self._num_chars, token_id, text))
            visible.append(self._show(text))
        return self._report("".join(visible), at_end=False)

    def finish(self) -> Piece:
        """The rest, after the last id: an unfinished character, and text that could have begun a stop string."""
        visible = ""
        if not self.is_stopped:
            rest = self._detokenizer.flush()
            if rest and self._waiting:
                start, token_id, text = self._waiting.pop()
                self._waiting.append((start, token_id, text + rest))
            visible = self._show(rest)
            if not self.is_stopped:
                held = self._stops.flush()
                self._num_visible += len(held)
                visible += held
        return self._report(visible, at_end=True)

    def _show(self, text: str) -> str:
        self._num_chars += len(text)
        visible = self._stops.feed(text)
        self._num_visible += len(visible)
        return visible

    def _report(self, visible: str, *, at_end: bool) -> Piece:
        # A token without text waits for text after it, so that no piece is without text before the end.
        if not (visible or at_end or self.is_stopped):
            return Piece("", ())
        # The last token may yet get the replacement of a character that it began and nothing completes.
        num_held = 0 if at_end or self.is_stopped else int(self._detokenizer.is_within_character)
        tokens = []
        while len(self._waiting) > num_held:
            start, token_id, text = self._waiting[0]
            if self._stops.match is not None and start >= self._num_visible:
                self._waiting.clear()
                break
            is_visible = start + len(text) <= self._num_visible and start < self._num_visible
            if not (is_visible or at_end or self.is_stopped):
                break
            self._waiting.popleft()
            tokens.append(TextToken(self._reported, token_id, text[: self._num_visible - start]))
            self._reported += 1
        return Piece(visible, tuple(tokens))
