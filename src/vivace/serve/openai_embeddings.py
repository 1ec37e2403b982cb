"""POST /v1/embeddings: texts or token ids in, vectors out, as numbers or base64."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from fastapi import Request, Response

from vivace.api.embedding import EmbedSession
from vivace.api.model import Model
from vivace.api.results import Embedding
from vivace.errors import InvalidRequest
from vivace.serve.bodies import listed
from vivace.serve.openai_schemas import EmbeddingRequest
from vivace.serve.routing import Routes
from vivace.serve.waiting import while_connected


async def create_embeddings(request: Request, routes: Routes) -> Response:
    """Answer one embeddings request."""
    body = await routes.read(request, EmbeddingRequest)
    model = routes.hub.model(body.model)
    sessions = await routes.prepare(request, lambda: _sessions(model, body))
    found = await while_connected(request, _collect(model, sessions))
    tokens = sum(embedding.usage.prompt for embedding in found)
    routes.metrics.tokens(model.info.name, tokens, 0, 0)
    encode = _as_base64 if body.encoding_format == "base64" else _as_numbers
    data = [
        {"object": "embedding", "index": index, "embedding": encode(embedding)} for index, embedding in enumerate(found)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    reply = {"object": "list", "data": data, "model": model.info.name, "usage": usage}
    # Up to millions of numbers: the standard library would take seconds, in which nobody else is served.
    return Response(msgspec.json.encode(reply), media_type="application/json")


def _inputs(body: EmbeddingRequest) -> list[str | list[int]]:
    found = listed(body.input)
    if "" in found:
        raise InvalidRequest(f"input.{found.index('')} is empty", field="input", hint="give each input some text")
    return found


def _sessions(model: Model, body: EmbeddingRequest) -> list[EmbedSession]:
    return model.embed_sessions(
        _inputs(body),
        dimensions=body.dimensions,
        normalize=body.normalize,
        prompt_name=body.prompt_name,
        truncate=body.truncate,
    )


async def _collect(model: Model, sessions: Sequence[EmbedSession]) -> list[Embedding]:
    found: dict[int, Embedding] = {}
    async with aclosing(model.arun_embed(sessions)) as items:
        async for index, embedding in items:
            found[index] = embedding
    return [found[index] for index in range(len(sessions))]


def _as_numbers(embedding: Embedding) -> list[float]:
    numbers: list[float] = embedding.vector.tolist()
    assert all(map(math.isfinite, numbers)), "a vector holds what JSON has no number for"
    return numbers


def _as_base64(embedding: Embedding) -> str:
    """Little-endian float32, which the official client asks for by default."""
    data: Any = embedding.vector.astype("<f4", copy=False)
    return base64.b64encode(data.tobytes()).decode("ascii")
