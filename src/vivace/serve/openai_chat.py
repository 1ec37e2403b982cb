"""POST /v1/chat/completions: a conversation in, the assistant's next message out, whole or as a stream."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from vivace.api.model import Model
from vivace.api.results import Completion, Delta, Token
from vivace.api.session import Session
from vivace.errors import InvalidRequest
from vivace.serve.openai_logprobs import chat_logprobs
from vivace.serve.openai_options import to_options
from vivace.serve.openai_schemas import ChatMessage, ChatRequest
from vivace.serve.routing import Routes
from vivace.serve.stream import stream_response
from vivace.serve.usage import UsageCount, observed
from vivace.serve.waiting import while_connected


async def create_chat_completion(request: Request, routes: Routes) -> Response:
    """Answer one chat request."""
    body = await routes.read(request, ChatRequest)
    model = routes.hub.model(body.model)
    ids, sessions = await routes.prepare(request, lambda: _sessions(model, body))
    answer = _Answer(body, routes.describe(model))
    deltas = observed(model, sessions, routes.metrics)
    if body.stream:
        return await stream_response(request, answer.chunks(deltas, len(ids)))
    return JSONResponse(await while_connected(request, answer.whole(deltas, sessions, len(ids))))


def _sessions(model: Model, body: ChatRequest) -> tuple[list[int], list[Session]]:
    """The conversation as ids, and a session for each choice."""
    ids = chat_ids(model, body.messages, body)
    limit = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    options = to_options(body, max_tokens=limit, logprobs=(body.top_logprobs or 0) if body.logprobs else None)
    return ids, model.sessions(ids, options, count=body.n or 1)


def chat_ids(model: Model, messages: Sequence[ChatMessage], body: ChatRequest | None = None) -> list[int]:
    """Token ids of a conversation, with the template settings of a body if there is one."""
    plain = [_plain(index, message) for index, message in enumerate(messages)]
    if body is None:
        return model.chat_ids(plain)
    return model.chat_ids(
        plain,
        add_generation_prompt=body.add_generation_prompt is not False,
        continue_final_message=bool(body.continue_final_message),
        variables=body.chat_template_kwargs,
    )


class _Answer:
    """The JSON of one request's answer."""

    def __init__(self, body: ChatRequest, described: dict[str, Any]) -> None:
        self._body = body
        self._with_usage = bool(body.stream_options and body.stream_options.include_usage)
        self._head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), **described}

    async def whole(
        self, deltas: AsyncGenerator[tuple[int, Delta], None], sessions: Sequence[Session], prompt_tokens: int
    ) -> dict[str, Any]:
        """The complete answer."""
        found, usage = await UsageCount.collect(deltas, len(sessions))
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [self._choice(index, completion) for index, completion in enumerate(found)],
            "usage": usage.json(prompt_tokens),
        }

    async def chunks(
        self, deltas: AsyncGenerator[tuple[int, Delta], None], prompt_tokens: int
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The answer as chunks: per choice one with the role, then text, then the finish reason; usage last."""
        usage = UsageCount()
        begun: set[int] = set()
        async with aclosing(deltas):
            async for index, delta in deltas:
                if index not in begun:
                    begun.add(index)
                    yield self._chunk(index, {"role": "assistant", "content": ""})
                usage.add(index, delta)
                rest = delta.tokens
                if delta.text:
                    yield self._chunk(index, {"content": delta.text}, tokens=rest)
                    rest = ()
                if delta.finish_reason:
                    yield self._chunk(index, {}, finish=delta.finish_reason, tokens=rest)
        if self._with_usage:
            yield {**self._head, "object": "chat.completion.chunk", "choices": [], "usage": usage.json(prompt_tokens)}

    def _choice(self, index: int, completion: Completion) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": completion.text, "refusal": None},
            "logprobs": chat_logprobs(completion.tokens) if self._body.logprobs else None,
            "finish_reason": completion.finish_reason,
        }

    def _chunk(
        self, index: int, delta: dict[str, Any], *, finish: str | None = None, tokens: Sequence[Token] = ()
    ) -> dict[str, Any]:
        logprobs = chat_logprobs(tokens) if self._body.logprobs and tokens else None
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        usage = {"usage": None} if self._with_usage else {}
        return {**self._head, "object": "chat.completion.chunk", "choices": [choice], **usage}


def _plain(index: int, message: ChatMessage) -> dict[str, Any]:
    """A message as templates expect it: content as text, only fields that were given."""
    found = message.model_dump(exclude_none=True)
    if isinstance(message.content, list):
        parts = []
        for place, part in enumerate(message.content):
            text = part.text if part.type == "text" else part.refusal if part.type == "refusal" else None
            if text is None:
                raise InvalidRequest(
                    f"messages.{index}.content.{place} is of type '{part.type}', this model takes text",
                    field=f"messages.{index}.content.{place}.type",
                    hint="send text, or choose a model that takes this type",
                )
            parts.append(text)
        found["content"] = "\n".join(parts)
    elif message.content is None:
        found["content"] = message.refusal or ""
    found.pop("refusal", None)
    if found["role"] == "developer":  # the newer name of the same role; templates know the older one
        found["role"] = "system"
    return found
