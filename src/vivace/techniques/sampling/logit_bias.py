"""Add a number to the scores of chosen ids: l_i + bias_i.

Origin: the OpenAI API. Cost: one addition per chosen id. Use -100 to forbid an id and 100 to force one. An id beyond
the vocabulary is an error before the request reaches the engine. The null value is no bias.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from vivace.errors import InvalidRequest
from vivace.techniques.sampling.base import Filter, History, Parts, Real, TechniqueConfig, option

LIMIT = 100.0


def _check(value: Any, field: str, null: Any) -> tuple[tuple[int, float], ...]:
    """Accepts a mapping of ids, as numbers or decimal strings, to numbers from -100 to 100; returns sorted pairs."""
    if not isinstance(value, Mapping | tuple):
        raise InvalidRequest(f"{field} is {value!r}, expected a mapping of token ids to numbers", field=field)
    bias = Real(low=-LIMIT, high=LIMIT)
    pairs = dict(value).items()
    return tuple(sorted({_id(key, field): bias(number, f"{field}.{key}", 0.0) for key, number in pairs}.items()))


def _id(key: Any, field: str) -> int:
    is_id = (isinstance(key, int) and not isinstance(key, bool)) or (isinstance(key, str) and key.isdecimal())
    if not is_id or int(key) < 0:
        hint = "keys are token ids; /tokenize shows the ids of a text"
        raise InvalidRequest(f"{field} has the key {key!r}, expected a token id", field=f"{field}.{key}", hint=hint)
    return int(key)


@dataclass(frozen=True)
class Config(TechniqueConfig):
    """value: (id, bias) pairs, given as a mapping; empty is off."""

    name: ClassVar[str] = "logit_bias"
    origin: ClassVar[str] = "OpenAI API reference"
    value: tuple[tuple[int, float], ...] = option((), _check)


def make(config: Config, parts: Parts) -> Filter:
    """Adds the biases. Raises InvalidRequest for an id beyond the vocabulary."""
    for key, _ in config.value:
        if key >= parts.vocab_size:
            message = f"logit_bias has the token id {key}, expected ids from 0 to {parts.vocab_size - 1}"
            raise InvalidRequest(message, field=f"logit_bias.{key}", hint="/tokenize shows the ids of a text")
    ids = torch.tensor([key for key, _ in config.value], dtype=torch.int64)
    biases = torch.tensor([bias for _, bias in config.value], dtype=torch.float32)

    def add(scores: Tensor, history: History) -> Tensor:
        if config.value:
            scores[ids] += biases
        return scores

    return add
