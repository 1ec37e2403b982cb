"""Log-probabilities in the two forms of the official API: a list of objects for chat, parallel lists for completions.

JSON has no infinity: candidates that a mask excluded are left out, and no value is below LEAST.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from vivace.api.results import Token

LEAST = -9999.0  # the official API's value for "very unlikely"


def chat_logprobs(tokens: Sequence[Token]) -> dict[str, Any]:
    """`logprobs` of a chat choice: one entry per token, with the bytes of the token itself."""
    return {"content": [_entry(token) for token in tokens], "refusal": None}


def completion_logprobs(tokens: Sequence[Token], offset: int) -> dict[str, Any]:
    """`logprobs` of a completion choice. The joined tokens equal the text; `offset` is where the first one begins."""
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.text)
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [None if token.logprob is None else _finite(token.logprob) for token in tokens],
        "top_logprobs": [_best(token) for token in tokens],
        "text_offset": offsets,
    }


def _entry(token: Token) -> dict[str, Any]:
    top = [_named(found.bytes, found.logprob) for found in token.top if found.logprob > -math.inf]
    return {**_named(token.bytes, token.logprob or 0.0), "top_logprobs": top}


def _named(data: bytes, logprob: float) -> dict[str, Any]:
    return {"token": data.decode("utf-8", "replace"), "bytes": list(data), "logprob": _finite(logprob)}


def _best(token: Token) -> dict[str, float] | None:
    """Candidates by text, the chosen token always among them; of candidates with one text the likelier stays."""
    if token.logprob is None:
        return None
    found: dict[str, float] = {}
    for candidate in token.top:
        if candidate.logprob > -math.inf:
            found.setdefault(candidate.bytes.decode("utf-8", "replace"), _finite(candidate.logprob))
    found.setdefault(token.bytes.decode("utf-8", "replace"), _finite(token.logprob))
    return found


def _finite(logprob: float) -> float:
    assert not math.isnan(logprob), "the engine gave NaN as a log-probability"
    return max(logprob, LEAST)
