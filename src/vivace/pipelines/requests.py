"""What a client of the engine sends and receives: plain data that travels between processes.

Requests hold ids and numbers only: text was tokenized before, and every field was validated by `check` before a job is
made of it. Configs of techniques travel as {technique name: {field: value}}; the pipeline makes the objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vivace.errors import InvalidRequest, VivaceError

ToldError = tuple[str, str, str, str]  # an error as it travels: code, message, hint, field


@dataclass(frozen=True)
class GenerateRequest:
    """Continue `ids`.

    max_tokens        tokens to generate at most; None: up to the context length
    sampling          techniques by name with their config fields; empty: greedy
    seed              of the counter-based random numbers; they depend on (seed, position) alone
    stop_ids          ids that end the answer, besides the model's own end ids unless ignore_eos
    min_tokens        end ids are masked until so many tokens are generated
    logprobs          None: off; k: log-probability of each generated token and of the k most likely ones
    prompt_logprobs   the same for each prompt token but the first
    speculation       a drafter by name with its config fields; empty: none; None: as the engine's config says
    """

    ids: tuple[int, ...]
    max_tokens: int | None = None
    sampling: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    seed: int = 0
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    speculation: Mapping[str, Mapping[str, Any]] | None = None
    priority: int = 0
    tenant: str = ""


@dataclass(frozen=True)
class EmbedRequest:
    """Embed `ids` (special tokens included) as one vector.

    pooling     technique names with their config fields, applied in order; empty: as the model's own files say
    dimensions  Matryoshka: cut to so many, then normalise
    normalize   scale to length one; None: as the model's own files say
    skip        first ids that pooling leaves out: the prompt of a model whose pooling excludes it
    """

    ids: tuple[int, ...]
    token_types: tuple[int, ...] = ()
    pooling: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    dimensions: int | None = None
    normalize: bool | None = None
    skip: int = 0
    priority: int = 0
    tenant: str = ""


@dataclass(frozen=True)
class TokenLogprob:
    """Log-probability of one token, and of the most likely ones (id, log-probability), best first."""

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Tokens:
    """Output of a step of a generate job: the new ids, several where guesses were right, with log-probabilities if
    asked for. The first output of a job that asked for prompt_logprobs carries those of prompt tokens 1, 2, ..."""

    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class Vector:
    """Output of an embed job: float32, little-endian."""

    data: bytes


@dataclass(frozen=True)
class Usage:
    """Units of a job.

    prompt              prompt tokens
    generated           tokens of the answer; the id that ended it is none of them
    cached              prompt tokens that came from the prefix cache when the job was first admitted
    accepted, rejected  tokens that a drafter guessed rightly and wrongly; each right one saved a step
    """

    prompt: int = 0
    generated: int = 0
    cached: int = 0
    accepted: int = 0
    rejected: int = 0


@dataclass(frozen=True)
class Reply:
    """One message about one request: an output, or the end. `finished` is "stop", "length", "cancelled" or "error".

    stop_id      the id that ended the answer, when one did (it is not among the output ids)
    error        what went wrong
    """

    output: Tokens | Vector | None = None
    finished: str | None = None
    stop_id: int | None = None
    usage: Usage = Usage()
    error: ToldError | None = None


def described(error: Exception) -> ToldError:
    """An error as it travels; `api.session.error_of` makes it an error again."""
    if not isinstance(error, VivaceError):
        return VivaceError.code, f"{type(error).__name__}: {error}", "", ""
    return error.code, error.message, error.hint, (isinstance(error, InvalidRequest) and error.field) or ""
