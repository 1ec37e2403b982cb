"""The web application: its routes, its error handlers, and the description at /docs."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException

from vivace import __version__
from vivace.errors import VivaceError
from vivace.serve import openai_models, status
from vivace.serve.docs_page import docs_page
from vivace.serve.hub import Hub
from vivace.serve.metrics import Metrics
from vivace.serve.middleware import CLIENT_CLOSED, Gate
from vivace.serve.openai_chat import create_chat_completion
from vivace.serve.openai_completions import create_completion
from vivace.serve.openai_embeddings import create_embeddings
from vivace.serve.openai_schemas import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    TokenizeRequest,
    Wire,
)
from vivace.serve.routing import Routes
from vivace.serve.wire_errors import as_request_error, error_response, plain_error

log = logging.getLogger("vivace.serve")

Handler = Callable[[Request, Routes], Awaitable[Response]]

POSTS: dict[str, tuple[Handler, type[Wire]]] = {
    "/v1/chat/completions": (create_chat_completion, ChatRequest),
    "/v1/completions": (create_completion, CompletionRequest),
    "/v1/embeddings": (create_embeddings, EmbeddingRequest),
    "/tokenize": (status.tokenize, TokenizeRequest),
    "/detokenize": (status.detokenize, DetokenizeRequest),
}
_ERRORS = {
    400: "A field is wrong.",
    401: "The API key is missing or wrong.",
    404: "Unknown model.",
    408: "The body did not come.",
    413: "The body is too large.",
    415: "The body is not declared as JSON.",
    429: "Too many requests wait.",
    499: "The client went away.",
    500: "The server failed.",
    503: "The server is starting or shutting down.",
}


def make_app(hub: Hub) -> FastAPI:
    """The application around `hub`, with counters of its own."""
    app = FastAPI(
        title="Vivace",
        version=__version__,
        redoc_url=None,
        openapi_url="/openapi.json",
        docs_url=None,
        redirect_slashes=False,  # the target would be made of the Host header, which is the client's
    )
    metrics = Metrics()
    routes = Routes(hub, metrics)
    _add_gets(app, routes)
    for path, (handler, kind) in POSTS.items():
        _add_post(app, routes, path, handler, kind)
    app.add_middleware(Gate, hub=hub, metrics=metrics)
    app.add_exception_handler(VivaceError, _on_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(Exception, _on_fault)
    _describe_bodies(app)
    return app


def _add_gets(app: FastAPI, routes: Routes) -> None:
    @app.get("/v1/models", tags=["models"], description=openai_models.list_models.__doc__)
    async def list_models() -> Response:
        return await openai_models.list_models(routes)

    # A name may hold slashes: hub ids do.
    @app.get(
        "/v1/models/{name:path}",
        tags=["models"],
        description=openai_models.retrieve_model.__doc__,
        responses=_documented(401, 404),
    )
    async def retrieve_model(name: str) -> Response:
        return await openai_models.retrieve_model(name, routes)

    @app.get("/health/live", tags=["status"], description=status.live.__doc__, response_class=PlainTextResponse)
    async def live() -> Response:
        return await status.live()

    @app.get(
        "/health/ready",
        tags=["status"],
        description=status.ready.__doc__,
        response_class=PlainTextResponse,
        responses=_documented(503),
    )
    async def ready() -> Response:
        return await status.ready(routes)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(docs_page(app.openapi()))

    @app.get("/metrics", tags=["status"], description=status.metrics.__doc__, response_class=PlainTextResponse)
    async def show_metrics() -> Response:
        return await status.metrics(routes)


def _add_post(app: FastAPI, routes: Routes, path: str, handler: Handler, kind: type[Wire]) -> None:
    async def endpoint(request: Request) -> Response:
        return await handler(request, routes)

    endpoint.__name__ = handler.__name__
    schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
    app.add_api_route(
        path,
        endpoint,
        methods=["POST"],
        description=handler.__doc__,
        responses=_documented(*_ERRORS),
        openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}},
    )


def _documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"description": _ERRORS[status]} for status in statuses}


def _describe_bodies(app: FastAPI) -> None:
    """Add the bodies to the OpenAPI description: they are parsed here, under our own limits, not by FastAPI."""
    original = app.openapi
    kinds = [(kind, "validation") for _, kind in POSTS.values()]

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            found = original()
            _, bodies = models_json_schema(kinds, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
            found.setdefault("components", {}).setdefault("schemas", {}).update(bodies["$defs"])
            app.openapi_schema = found
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, VivaceError)
    if error.status == CLIENT_CLOSED:
        request.state.client_closed = True
    if error.status == 500:
        log.error("%s: %s", request.state.request_id, error)
    return error_response(as_request_error(error))


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    codes = {404: "not_found", 405: "method_not_allowed", 408: "request_timeout", 415: "unsupported_media_type"}
    message = str(error.detail)
    if error.status_code == 404:
        message = f"there is no route {request.url.path[:200]} (hint: GET /docs lists all routes)"
    elif error.status_code == 405:
        message = f"{request.url.path[:200]} does not take {request.method} (hint: GET /docs lists all routes)"
    code = codes.get(error.status_code, "http_error")
    return plain_error(error.status_code, code, message, dict(error.headers or {}))


async def _on_fault(request: Request, error: Exception) -> Response:
    log.error("%s failed", request.url.path, exc_info=error)
    return plain_error(500, "internal_error", "the server failed (hint: the server's log has the details)")
