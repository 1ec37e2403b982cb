"""Guess that the text goes on as it went on before: find its last n tokens earlier in it and copy what came after them.

    n = max { min_n <= n <= max_n : x_{t-n+1..t} = x_{s-n+1..s} for some s < t },  s the largest such place
    guess_j = x_{s+j},  j = 1 .. k

A copy that reaches the end of the text goes on with its own beginning, as in LZ77, so that a loop of any period is
guessed as far as k allows.

Saxena, "Prompt Lookup Decoding", 2023 (github.com/apoorvumang/prompt-lookup-decoding); the same idea with reference
texts: Yang, Ge, Wang, Jiao, Jiang, Yang, Majumder and Wei, "Inference with Reference: Lossless Acceleration of Large
Language Models", 2023, arXiv:2304.04487. Cost: no second model; max_n - min_n + 1 writes into a table per token and as
many look-ups per step, however long the text is; each guess is one more row of a step. Use it where answers repeat
their prompt or themselves: summaries, edits, code, questions about a document, chats that quote. In other text few
guesses are made and most of them are wrong; min_n = 3 makes fewer. The null value is k = 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from vivace.errors import InvalidRequest
from vivace.techniques.speculation.base import EMPTY, DraftConfig, Drafter, DraftTree, Parts, Whole, option

ID_BYTES = 4
_ID = np.dtype("<u4")


@dataclass(frozen=True)
class Config(DraftConfig):
    """k: tokens per guess, 0 is off; min_n, max_n: tokens that must agree before anything is guessed, and that are
    tried first."""

    name: ClassVar[str] = "ngram"
    origin: ClassVar[str] = "Saxena 2023, prompt lookup decoding; Yang et al. 2023, arXiv:2304.04487"
    min_n: int = option(2, Whole(low=1, high=16))
    max_n: int = option(4, Whole(low=1, high=16))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_n > self.max_n:
            message = f"ngram.min_n is {self.min_n}, expected at most ngram.max_n, {self.max_n}"
            raise InvalidRequest(message, field="ngram.min_n", hint="raise max_n with it")


def make(config: Config, parts: Parts) -> Drafter:
    """A drafter for one job."""
    return NgramDrafter(config)


class NgramDrafter:
    """Where each run of n tokens was seen last, for the text that was proposed for so far."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._text = b""
        self._last: dict[bytes, int] = {}  # run of tokens -> tokens before the one that followed it last

    def propose(self, history: npt.NDArray[np.int64], room: int) -> DraftTree:
        """What came after the last place where the text read as it reads now."""
        text = history.astype(_ID).tobytes()
        self._index(text)
        after = self._find(text)
        count = min(self._config.k, room)
        if after is None or count < 1:
            return EMPTY
        ids = history[after : after + count].tolist()
        period = len(history) - after
        ids += [ids[place % period] for place in range(len(ids), count)]
        return DraftTree.chain(tuple(ids))

    def _index(self, text: bytes) -> None:
        """Note the runs that have come to an end and have a token after them, each once."""
        if not text.startswith(self._text):
            self._text = b""
            self._last.clear()
        for stop in range(max(len(self._text), ID_BYTES), len(text), ID_BYTES):
            for n in range(self._config.min_n, self._config.max_n + 1):
                if n * ID_BYTES > stop:
                    break
                self._last[text[stop - n * ID_BYTES : stop]] = stop // ID_BYTES
        self._text = text

    def _find(self, text: bytes) -> int | None:
        """The place after the last earlier copy of the text's end, the longest end that has one; None without one."""
        for n in range(self._config.max_n, self._config.min_n - 1, -1):
            place = self._last.get(text[-n * ID_BYTES :]) if n * ID_BYTES <= len(text) else None
            if place is not None:
                return place
        return None
