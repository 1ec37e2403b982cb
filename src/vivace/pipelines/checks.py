"""Every field of a generate or embed request, checked before a job is made of it. Needs limits only, no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vivace.errors import ContextLengthExceeded, InvalidRequest
from vivace.pipelines.requests import EmbedRequest, GenerateRequest

MAX_LOGPROBS = 20


@dataclass(frozen=True)
class Limits:
    """What a request is checked against.

    vocab_size  token ids are below it
    max_length  most tokens of a job: prompt and answer together
    end_ids     ids that end an answer of this model by themselves
    is_cut      whether max_length is what the pages hold, less than the model and the settings allow
    """

    vocab_size: int
    max_length: int
    end_ids: tuple[int, ...] = ()
    is_cut: bool = False


def check_generate(request: GenerateRequest, limits: Limits) -> None:
    """Raises InvalidRequest or ContextLengthExceeded, naming the field."""
    _check_ids("prompt", request.ids, limits.vocab_size)
    _check_ids("stop_token_ids", request.stop_ids, limits.vocab_size)
    _check_whole("priority", request.priority)
    _check_whole("seed", request.seed)
    if not isinstance(request.ignore_eos, bool):
        raise InvalidRequest(f"ignore_eos is {request.ignore_eos!r}, expected true or false", field="ignore_eos")
    for name in ("logprobs", "prompt_logprobs"):
        value = getattr(request, name)
        if value is not None:
            _check_whole(name, value, 0, MAX_LOGPROBS)
    _check_whole("min_tokens", request.min_tokens, 0)
    if request.max_tokens is not None:
        _check_whole("max_tokens", request.max_tokens, 0)
        if request.min_tokens > request.max_tokens:
            message = f"min_tokens is {request.min_tokens}, expected at most max_tokens, {request.max_tokens}"
            raise InvalidRequest(message, field="min_tokens", hint="lower min_tokens or raise max_tokens")
    if not isinstance(request.sampling, Mapping):
        raise InvalidRequest("sampling is no mapping of techniques to their fields", field="sampling")
    if request.min_tokens and "min_tokens" in request.sampling:
        raise InvalidRequest("min_tokens is given twice", field="min_tokens", hint="leave it out of sampling")
    if request.speculation is not None and not isinstance(request.speculation, Mapping):
        raise InvalidRequest("speculation is no mapping of drafters to their fields", field="speculation")
    _check_length(request, limits)


def check_embed(request: EmbedRequest, limits: Limits) -> None:
    """Raises InvalidRequest or ContextLengthExceeded, naming the field."""
    _check_ids("input", request.ids, limits.vocab_size)
    _check_whole("priority", request.priority)
    if request.token_types and len(request.token_types) != len(request.ids):
        message = f"token_types has {len(request.token_types)} entries, expected one per id, {len(request.ids)}"
        raise InvalidRequest(message, field="token_types")
    _check_whole("skip", request.skip, 0, len(request.ids) - 1)
    if len(request.ids) > limits.max_length:
        message = f"the input has {len(request.ids)} tokens, expected at most {limits.max_length}"
        raise ContextLengthExceeded(message, field="input", hint="shorten or split the text")


def answer_length(request: GenerateRequest, limits: Limits) -> int:
    """Tokens that the answer may have at most."""
    return limits.max_length - len(request.ids) if request.max_tokens is None else request.max_tokens


def _check_length(request: GenerateRequest, limits: Limits) -> None:
    prompt, context = len(request.ids), limits.max_length
    holds = f"the context holds {context} tokens" + " (the memory for keys and values has no more)" * limits.is_cut
    if prompt >= context and (request.max_tokens is None or prompt > context):
        message = f"{holds}, the prompt has {prompt}: no room for an answer"
        raise ContextLengthExceeded(message, field="prompt", hint="shorten the prompt")
    if request.max_tokens is not None and prompt + request.max_tokens > context:
        message = f"{holds}, the prompt has {prompt} and max_tokens is {request.max_tokens}"
        hint = f"lower max_tokens to {context - prompt}" if prompt < context else "shorten the prompt"
        raise ContextLengthExceeded(message, field="max_tokens", hint=hint)


def _check_ids(field: str, ids: Sequence[int], vocab_size: int) -> None:
    for key in ids:
        if not isinstance(key, int) or isinstance(key, bool) or not 0 <= key < vocab_size:
            message = f"{field} has the token id {key!r}, expected ids from 0 to {vocab_size - 1}"
            raise InvalidRequest(message, field=field, hint="ids belong to one model's vocabulary")
    if field in ("prompt", "input") and not ids:
        raise InvalidRequest(f"{field} is empty, expected at least one token", field=field, hint="give some text")


def _check_whole(field: str, value: object, low: int | None = None, high: int | None = None) -> None:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if is_whole and (low is None or value >= low) and (high is None or value <= high):  # type: ignore[operator]
        return
    limits = "" if low is None else f" of at least {low}" if high is None else f" from {low} to {high}"
    raise InvalidRequest(f"{field} is {value!r}, expected a whole number{limits}", field=field)
