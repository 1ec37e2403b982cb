"""What a model gives back: answers, pieces of answers while they are written, and vectors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vivace.pipelines.requests import Usage

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Candidate:
    """One of the most likely tokens at a place."""

    id: int
    bytes: bytes
    logprob: float


@dataclass(frozen=True)
class Token:
    """A token of an answer.

    text     the piece of the text that it completed: joined, the pieces are the text
    bytes    the bytes of the token alone, which may end within a character
    logprob  None if not asked for, and for the first token of a prompt
    top      the most likely tokens at its place, best first
    """

    id: int
    text: str
    bytes: bytes
    logprob: float | None = None
    top: tuple[Candidate, ...] = ()


@dataclass(frozen=True)
class Delta:
    """The next piece of an answer. The last one has `finish_reason` ("stop" or "length") and `usage`, the first one the
    tokens of the prompt if their log-probabilities were asked for."""

    text: str = ""
    tokens: tuple[Token, ...] = ()
    prompt: tuple[Token, ...] = ()
    finish_reason: str | None = None
    usage: Usage | None = None


@dataclass(frozen=True)
class Completion:
    """A whole answer. `ids` are those whose text is part of it; `usage.generated` also counts the end token and what a
    stop string took."""

    text: str
    finish_reason: str
    usage: Usage
    tokens: tuple[Token, ...] = field(default=(), repr=False)
    prompt: tuple[Token, ...] = field(default=(), repr=False)

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(token.id for token in self.tokens)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Embedding:
    """The vector (dimensions,) float32 of one text, and the number of tokens read."""

    vector: NDArray[np.float32]
    usage: Usage
