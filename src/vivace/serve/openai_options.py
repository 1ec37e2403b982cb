"""From the sampling fields of a body to options, with the defaults of the official API."""

from __future__ import annotations

from vivace.api.options import Options
from vivace.errors import InvalidRequest
from vivace.serve.openai_schemas import Sampling


def to_options(
    body: Sampling, *, max_tokens: int | None, logprobs: int | None, prompt_logprobs: int | None = None
) -> Options:
    """Options of a body. An official default is 1 for temperature and top_p, and no penalty."""
    return Options(
        max_tokens=max_tokens,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_k=body.top_k or 0,
        top_p=1.0 if body.top_p is None else body.top_p,
        min_p=body.min_p or 0.0,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        logit_bias=_bias_by_id(body.logit_bias or {}),
        min_tokens=body.min_tokens or 0,
        stop=body.stop or (),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        seed=body.seed,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        speculation=body.speculation,
    )


def _bias_by_id(biases: dict[str, float]) -> dict[int, float]:
    found = {}
    for key, bias in biases.items():
        if not (key.isascii() and key.isdecimal() and len(key) < 12):
            raise InvalidRequest(
                f"logit_bias has the key '{key[:40]}', expected a token id",
                field="logit_bias",
                hint="POST /tokenize gives the ids of a text",
            )
        found[int(key)] = bias
    return found
