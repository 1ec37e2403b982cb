"""What happens to every request before its route: request id, key, draining, and counting."""

from __future__ import annotations

import hashlib
import hmac
import re
import time
import uuid
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vivace.serve.hub import Hub
from vivace.serve.metrics import Metrics
from vivace.serve.wire_errors import RETRY_AFTER_SECONDS, plain_error

# Routes without a key: liveness and readiness for whoever watches the process, and the description of the interface.
OPEN_PATHS = frozenset({"/health/live", "/health/ready", "/docs", "/openapi.json"})
# Routes that answer while the server drains.
DRAIN_PATHS = OPEN_PATHS | {"/metrics", "/v1/models"}
CLIENT_CLOSED = 499
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


class Gate:
    """ASGI middleware around all routes."""

    def __init__(self, app: ASGIApp, hub: Hub, metrics: Metrics) -> None:
        self._app = app
        self._hub = hub
        self._metrics = metrics
        key = hub.config.api_key
        self._key_hash = hashlib.sha256(key.encode()).digest() if key else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else f"req-{uuid.uuid4().hex}"
        scope.setdefault("state", {})["request_id"] = request_id
        status = 0
        started = time.perf_counter()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message.setdefault("headers", []).append((b"x-request-id", request_id.encode("latin-1")))
            await send(message)

        if scope["method"] == "HEAD":  # as GET; the web server leaves the body out
            scope = {**scope, "method": "GET"}
        path = scope["path"]
        refusal = self._refusal(path, headers)
        try:
            if refusal is not None:
                await refusal(scope, receive, send_with_id)
            elif path in OPEN_PATHS:
                await self._app(scope, receive, send_with_id)
            else:
                async with self._hub.working():
                    await self._app(scope, receive, send_with_id)
        finally:
            is_lost = scope["state"].get("client_closed", False) or status == 0
            self._metrics.count(scope, CLIENT_CLOSED if is_lost else status, time.perf_counter() - started)

    def _refusal(self, path: str, headers: dict[str, str]) -> Any:
        if "transfer-encoding" in headers and "content-length" in headers:
            # RFC 9112, 6.1: whoever stands between may have seen another end of this request.
            message = "Content-Length and Transfer-Encoding are both given (hint: send one of them)"
            return plain_error(400, "invalid_http", message, {"Connection": "close"})
        if self._key_hash is not None and path not in OPEN_PATHS and not self._has_key(headers):
            return plain_error(
                401,
                "invalid_api_key",
                "the API key is missing or wrong (hint: send the header 'Authorization: Bearer KEY')",
                {"WWW-Authenticate": "Bearer"},
            )
        if self._hub.is_draining and path not in DRAIN_PATHS:
            message = "the server is shutting down (hint: retry, another server may answer)"
            return plain_error(503, "shutting_down", message, {"Retry-After": str(RETRY_AFTER_SECONDS)})
        return None

    def _has_key(self, headers: dict[str, str]) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = hashlib.sha256(token.strip().encode("latin-1")).digest()
        assert self._key_hash is not None
        return hmac.compare_digest(given, self._key_hash) and scheme.lower() == "bearer"
