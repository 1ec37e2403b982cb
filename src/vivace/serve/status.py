"""Health, metrics, and the tokenizer as a service."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST

from vivace.api.model import Model
from vivace.api.options import check_ids
from vivace.errors import EngineDied
from vivace.serve.openai_chat import chat_ids
from vivace.serve.openai_schemas import DetokenizeRequest, TokenizeRequest
from vivace.serve.routing import Routes
from vivace.serve.wire_errors import RETRY_AFTER_SECONDS


async def live() -> Response:
    """200 as long as the process answers, also while it drains."""
    return PlainTextResponse("ok\n")


async def ready(routes: Routes) -> Response:
    """200 if a request would be served now, else 503 with the reason."""
    missing = [name for name in routes.hub.texts if name not in routes.hub.port.models]
    if routes.hub.is_draining:
        reason = "shutting down"
    elif missing or not routes.hub.is_engine_up():
        reason = "the engine is starting"
    else:
        try:
            await routes.hub.stats()
        except EngineDied as error:
            reason = error.message
        else:
            return PlainTextResponse("ready\n")
    return PlainTextResponse(f"{reason}\n", 503, {"Retry-After": str(RETRY_AFTER_SECONDS)})


async def metrics(routes: Routes) -> Response:
    """The counters in Prometheus' format."""
    try:
        engine: dict[str, Any] | None = await routes.hub.stats()
    except EngineDied:
        engine = None
    return Response(routes.metrics.render(engine), media_type=CONTENT_TYPE_LATEST)


async def tokenize(request: Request, routes: Routes) -> Response:
    """Ids of a text or a conversation, and the bytes of each as text."""
    body = await routes.read(request, TokenizeRequest)
    model = routes.hub.model(body.model)
    ids = await routes.prepare(request, lambda: _ids(model, body))
    return JSONResponse({"tokens": ids, "count": len(ids), "max_model_len": model.info.context_length})


async def detokenize(request: Request, routes: Routes) -> Response:
    """The text of ids."""
    body = await routes.read(request, DetokenizeRequest)
    model = routes.hub.model(body.model)
    text = await routes.prepare(request, lambda: _text(model, body))
    return JSONResponse({"prompt": text})


def _ids(model: Model, body: TokenizeRequest) -> list[int]:
    if body.messages is not None:
        return chat_ids(model, body.messages)
    return model.tokenize(body.prompt or "", add_special=body.add_special_tokens, parse_special=body.parse_special)


def _text(model: Model, body: DetokenizeRequest) -> str:
    check_ids(model.info, "tokens", body.tokens)
    return model.detokenize(body.tokens)
