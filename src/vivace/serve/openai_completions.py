"""POST /v1/completions: raw prompts in, continuations out; with `echo`, prompts can be scored."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from vivace.api.model import Model
from vivace.api.options import Options
from vivace.api.results import Completion, Delta, Token
from vivace.api.session import Session, prompt_tokens
from vivace.errors import InvalidRequest
from vivace.serve.bodies import listed
from vivace.serve.openai_logprobs import completion_logprobs
from vivace.serve.openai_options import to_options
from vivace.serve.openai_schemas import CompletionRequest
from vivace.serve.routing import Routes
from vivace.serve.stream import stream_response
from vivace.serve.usage import UsageCount, observed
from vivace.serve.waiting import while_connected

DEFAULT_MAX_TOKENS = 16  # of the official API
MAX_JOBS = 2048  # prompts times choices of one request


async def create_completion(request: Request, routes: Routes) -> Response:
    """Answer one completion request."""
    body = await routes.read(request, CompletionRequest)
    model = routes.hub.model(body.model)
    prompts, sessions = await routes.prepare(request, lambda: _sessions(model, body))
    answer = _Answer(body, model, routes.describe(model), prompts)
    deltas = observed(model, sessions, routes.metrics)
    if body.stream:
        return await stream_response(request, answer.chunks(deltas))
    return JSONResponse(await while_connected(request, answer.whole(deltas)))


class _Answer:
    """The JSON of one request's answer. Choice i belongs to prompt i // n."""

    def __init__(
        self, body: CompletionRequest, model: Model, described: dict[str, Any], prompts: Sequence[list[int]]
    ) -> None:
        self._body = body
        self._model = model
        self._prompts = prompts
        self._count = body.n or 1
        self._with_usage = bool(body.stream_options and body.stream_options.include_usage)
        self._head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            **described,
        }

    async def whole(self, deltas: AsyncGenerator[tuple[int, Delta], None]) -> dict[str, Any]:
        """The complete answer."""
        found, usage = await UsageCount.collect(deltas, len(self._prompts) * self._count)
        choices = [self._whole_choice(index, completion) for index, completion in enumerate(found)]
        return {**self._head, "choices": choices, "usage": self._usage(usage)}

    async def chunks(self, deltas: AsyncGenerator[tuple[int, Delta], None]) -> AsyncGenerator[dict[str, Any], None]:
        """The answer as chunks; the finish reason comes with the last text or alone, usage last."""
        usage = UsageCount()
        choices = [_Choice() for _ in range(len(self._prompts) * self._count)]
        async with aclosing(deltas):
            async for index, delta in deltas:
                usage.add(index, delta)
                tokens, text = delta.tokens, delta.text
                state = choices[index]
                if self._body.echo and not state.has_begun:
                    prompt = self._prompt(index, delta.prompt)
                    tokens, text = prompt + tokens, _joined(prompt) + text
                state.has_begun = True
                if text or delta.finish_reason:
                    yield self._chunk(index, text, tokens, state.offset, delta.finish_reason)
                state.offset += len(_joined(tokens))
        if self._with_usage:
            yield {**self._head, "choices": [], "usage": self._usage(usage)}

    def _whole_choice(self, index: int, completion: Completion) -> dict[str, Any]:
        tokens, text = completion.tokens, completion.text
        if self._body.echo:
            prompt = self._prompt(index, completion.prompt)
            tokens, text = prompt + tokens, _joined(prompt) + text
        return self._choice(index, text, tokens, 0, completion.finish_reason)

    def _choice(
        self, index: int, text: str, tokens: Sequence[Token], offset: int, finish: str | None
    ) -> dict[str, Any]:
        logprobs = completion_logprobs(tokens, offset) if self._body.logprobs is not None and tokens else None
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}

    def _chunk(self, index: int, text: str, tokens: Sequence[Token], offset: int, finish: str | None) -> dict[str, Any]:
        usage = {"usage": None} if self._with_usage else {}
        return {**self._head, "choices": [self._choice(index, text, tokens, offset, finish)], **usage}

    def _prompt(self, index: int, scored: tuple[Token, ...]) -> tuple[Token, ...]:
        return scored or prompt_tokens(self._model.text.tokenizer, self._prompts[index // self._count])

    def _usage(self, usage: UsageCount) -> dict[str, Any]:
        firsts = range(0, len(self._prompts) * self._count, self._count)
        return usage.json(sum(map(len, self._prompts)), firsts=firsts)


@dataclass
class _Choice:
    """What was streamed of one choice so far. `offset`: where the next token begins; text may be ahead of its token."""

    has_begun: bool = False
    offset: int = 0


def _sessions(model: Model, body: CompletionRequest) -> tuple[list[list[int]], list[Session]]:
    """The prompts as ids, and a session for each choice of each."""
    prompts = _prompts(model, body)
    count = body.n or 1
    if len(prompts) * count > MAX_JOBS:
        raise InvalidRequest(
            f"{len(prompts)} prompts with n = {count} are more than {MAX_JOBS} answers",
            field="n",
            hint="send several requests",
        )
    sessions: list[Session] = []
    for ids in prompts:
        sessions += model.sessions(ids, _options(model, body, ids), count=count)
    return prompts, sessions


def _prompts(model: Model, body: CompletionRequest) -> list[list[int]]:
    special = bool(body.parse_special)
    return [
        model.tokenize(item, parse_special=special) if isinstance(item, str) else list(item)
        for item in listed(body.prompt)
    ]


def _options(model: Model, body: CompletionRequest, ids: Sequence[int]) -> Options:
    limit = body.max_tokens
    if limit is None:
        limit = max(1, min(DEFAULT_MAX_TOKENS, model.info.context_length - len(ids)))
    if limit == 0 and not body.echo:
        raise InvalidRequest(
            "max_tokens is 0, which is only of use with echo", field="max_tokens", hint="ask for at least 1 token"
        )
    return to_options(
        body, max_tokens=limit, logprobs=body.logprobs, prompt_logprobs=body.logprobs if body.echo else None
    )


def _joined(tokens: Sequence[Token]) -> str:
    return "".join(token.text for token in tokens)
