"""SentencePiece BPE from scores (Kudo, Richardson 2018): the best-scored pair is merged until none is left.

Words are tokenized one by one and remembered. That is exact, since a word is cut off only where no piece of the
vocabulary could reach across: before a space mark whose left neighbour never stands before a space mark in a piece.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Mapping
from functools import lru_cache

SPACE_MARK = "▁"
_CACHED_WORDS = 1 << 14
_LONGEST_CACHED_WORD = 64


class SentencePieceBPE:
    """Cuts text (spaces already written as U+2581) into pieces of a scored vocabulary.

    `pieces` maps text to (id, score). `fallback` gives the ids of a character that is no piece, such as its bytes.
    """

    def __init__(self, pieces: Mapping[str, tuple[int, float]], fallback: Callable[[str], list[int]]) -> None:
        self._pieces = pieces
        self._fallback = fallback
        self._words = _word_pattern(pieces)
        self._encode_cached = lru_cache(maxsize=_CACHED_WORDS)(self._encode_word)

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`."""
        ids: list[int] = []
        for word in self._words.findall(text):
            encode = self._encode_cached if len(word) <= _LONGEST_CACHED_WORD else self._encode_word
            ids.extend(encode(word))
        return ids

    def _encode_word(self, word: str) -> tuple[int, ...]:
        ids: list[int] = []
        for part in merge_by_score(list(word), self._score):
            piece = self._pieces.get(part)
            ids.extend(self._fallback(part) if piece is None else [piece[0]])
        return tuple(ids)

    def _score(self, text: str) -> float | None:
        piece = self._pieces.get(text)
        return None if piece is None else piece[1]


def merge_by_score(parts: list[str], score: Callable[[str], float | None]) -> list[str]:
    """Merge neighbouring parts, always the pair whose union scores best (leftmost on a tie), until no union scores.

    O(n log n). `parts` is changed: a merged part leaves an empty string behind.
    """
    following = [*range(1, len(parts)), -1]
    previous = list(range(-1, len(parts) - 1))
    queue: list[tuple[float, int, int, int]] = []

    def offer(left: int, right: int) -> None:
        if left >= 0 and right >= 0:
            union = parts[left] + parts[right]
            value = score(union)
            if value is not None:
                heapq.heappush(queue, (-value, left, right, len(union)))

    for index in range(1, len(parts)):
        offer(index - 1, index)
    while queue:
        _, left, right, length = heapq.heappop(queue)
        if not parts[left] or not parts[right] or len(parts[left]) + len(parts[right]) != length:
            continue  # one of the two has been merged since
        parts[left] += parts[right]
        parts[right] = ""
        following[left] = following[right]
        if following[right] >= 0:
            previous[following[right]] = left
        offer(previous[left], left)
        offer(left, following[left])
    return [part for part in parts if part]


def _word_pattern(pieces: Mapping[str, tuple[int, float]]) -> re.Pattern[str]:
    """Return the pattern of a word: it ends before a space mark unless some piece holds that very pair."""
    joined = "\0".join(pieces)
    before_mark = {match[0] for match in re.findall(f"([^{SPACE_MARK}\0]){SPACE_MARK}", joined)}
    joiners = "".join(map(re.escape, sorted(before_mark)))
    across = f"|(?<=[{joiners}]){SPACE_MARK}+" if joiners else ""
    return re.compile(f"{SPACE_MARK}*(?:[^{SPACE_MARK}]{across})+|{SPACE_MARK}+")
