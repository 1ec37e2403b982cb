"""How an answer is generated: every option with its range, checked before the engine sees it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from vivace.api.info import ModelInfo
from vivace.errors import InvalidRequest, UnknownName, nearest
from vivace.pipelines.checks import MAX_LOGPROBS, Limits, check_generate
from vivace.pipelines.requests import GenerateRequest
from vivace.techniques.index import SPECULATION, with_usual

MAX_SEED_BITS = 63
SMALLEST_TOP_P = 1e-9  # keeps the most likely token alone: what a top_p of 0 asks for

# Inclusive ranges of the numbers.
_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repetition_penalty": (1e-3, 10.0),
}
_COUNTS: dict[str, int] = {"top_k": 2**31 - 1, "min_tokens": 2**31 - 1}
_OPTIONAL_COUNTS: dict[str, int] = {
    "max_tokens": 2**31 - 1,
    "logprobs": MAX_LOGPROBS,
    "prompt_logprobs": MAX_LOGPROBS,
}
# Options that are techniques of the sampling slot, with the value at which they do nothing.
_TECHNIQUES: dict[str, float] = {
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
}


@dataclass(frozen=True)
class Options:
    """Options of one answer. Filters run in the order of `techniques.index.SAMPLING`.

    max_tokens          tokens at most; left out: up to the context length
    temperature         0: the most likely token each time
    top_k               draw from this many of the most likely tokens; 0: from all
    top_p               draw from the fewest likely tokens that hold this share of the probability; 1: from all
    min_p               draw from tokens at least this share as likely as the best one; 0: from all
    presence_penalty    subtracted once from the score of each token that was generated
    frequency_penalty   subtracted per occurrence
    repetition_penalty  divides the scores of tokens seen in prompt and answer; 1 is off
    logit_bias          token id -> what is added to its score, -100 to 100
    min_tokens          tokens before the answer may end by itself
    stop                strings that end the answer; they are not part of it
    stop_token_ids      token ids that end the answer
    ignore_eos          go on past the model's own end tokens
    seed                of this answer's random numbers; left out: a new one each time
    logprobs            k: log-probabilities of each token and of the k most likely ones; left out: none
    prompt_logprobs     the same for the prompt
    speculation         a drafter that guesses tokens to save steps: "ngram", {"ngram": {"k": 12}}, "off"; left out: as
                        the engine's config says. Answers do not depend on it
    """

    max_tokens: int | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    min_tokens: int = 0
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    speculation: str | Mapping[str, Mapping[str, Any]] | None = None

    def __post_init__(self) -> None:
        """Raises InvalidRequest for the first option of a wrong type or out of its range."""
        for name, (low, high) in _RANGES.items():
            _check_number(name, getattr(self, name), low, high)
        for name, high in _COUNTS.items():
            _check_whole(name, getattr(self, name), 0, high)
        for name, high in _OPTIONAL_COUNTS.items():
            if getattr(self, name) is not None:
                _check_whole(name, getattr(self, name), 0, high)
        if self.seed is not None:
            _check_whole("seed", self.seed, -(2**63), 2**64 - 1)
        if not isinstance(self.ignore_eos, bool):
            raise _refusal("ignore_eos", self.ignore_eos, "True or False")
        object.__setattr__(self, "stop", _strings(self.stop))
        object.__setattr__(self, "stop_token_ids", _ids("stop_token_ids", self.stop_token_ids))
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias))
        if self.speculation is not None:
            object.__setattr__(self, "speculation", with_usual(SPECULATION, self.speculation))

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Options:
        """Options from keywords. Raises UnknownName for one that does not exist, with the nearest that does."""
        known = {item.name for item in fields(cls)}
        for name in options:
            if name not in known:
                raise UnknownName(f"unknown option '{name}'", field=name, hint=nearest(name, known))
        return cls(**options)

    def with_seed(self, offset: int = 0) -> Options:
        """These options with a seed: their own or a random one, plus `offset` (for the choices of one request)."""
        seed = secrets.randbits(MAX_SEED_BITS) if self.seed is None else self.seed
        return replace(self, seed=(seed + offset) % 2**64)

    def check(self, info: ModelInfo, prompt_ids: Sequence[int]) -> None:
        """Raises InvalidRequest or ContextLengthExceeded for what this model cannot do with this prompt."""
        check_generate(self.request(prompt_ids), Limits(info.vocab_size, info.context_length))
        check_ids(info, "logit_bias", tuple(self.logit_bias))

    def request(self, prompt_ids: Sequence[int]) -> GenerateRequest:
        """The request for the engine. Stop strings are not part of it: text stays on this side."""
        sampling: dict[str, dict[str, Any]] = {}
        if self.logit_bias:
            sampling["logit_bias"] = {"value": dict(self.logit_bias)}
        for name, null in _TECHNIQUES.items():
            value = getattr(self, name)
            if value != null:
                sampling[name] = {"value": max(value, SMALLEST_TOP_P) if name == "top_p" else value}
        return GenerateRequest(
            ids=tuple(prompt_ids),
            max_tokens=self.max_tokens,
            sampling=sampling,
            seed=self.with_seed().seed or 0,
            stop_ids=tuple(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
            min_tokens=self.min_tokens,
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs,
            speculation=self.speculation,  # type: ignore[arg-type]  # a mapping since it was checked
        )


def check_ids(info: ModelInfo, name: str, ids: Sequence[int]) -> None:
    """Raises InvalidRequest for an id outside the vocabulary of the model."""
    for token_id in ids:
        if not 0 <= token_id < info.vocab_size:
            raise InvalidRequest(
                f"{name} holds the token id {token_id}, the vocabulary of '{info.name}' has {info.vocab_size}",
                field=name,
                hint=f"use ids from 0 to {info.vocab_size - 1}",
            )


def _check_number(name: str, value: Any, low: float, high: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:  # NaN is in no range
        raise _refusal(name, value, f"a number from {low:g} to {high:g}")


def _check_whole(name: str, value: Any, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise _refusal(name, value, f"a whole number from {low} to {high}")


def _strings(value: Any) -> tuple[str, ...]:
    found = (value,) if isinstance(value, str) else value
    if not isinstance(found, Sequence) or any(not isinstance(item, str) or not item for item in found):
        raise _refusal("stop", value, "a string or a list of strings, none of them empty")
    return tuple(found)


def _ids(name: str, value: Any) -> tuple[int, ...]:
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    if not is_list or any(not isinstance(item, int) or isinstance(item, bool) for item in value):
        raise _refusal(name, value, "a list of token ids")
    return tuple(value)


def _biases(value: Any) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise _refusal("logit_bias", value, "a mapping from token ids to numbers")
    for token_id, bias in value.items():
        if not isinstance(token_id, int) or isinstance(token_id, bool):
            raise _refusal("logit_bias", token_id, "token ids as keys")
        _check_number(f"logit_bias.{token_id}", bias, -100.0, 100.0)
    return dict(value)


def _refusal(name: str, value: Any, expected: str) -> InvalidRequest:
    is_huge = isinstance(value, int) and value.bit_length() > 1000  # Python refuses to write out some of them
    shown = f"a number of {value.bit_length()} bits" if is_huge else repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    return InvalidRequest(f"{name} is {shown}, expected {expected}", field=name, hint="leave it out for its default")
