"""Errors on the wire: the official error object, and which status each error has."""

from __future__ import annotations

import json
from typing import Any

from fastapi import Response

from vivace.errors import InvalidRequest, VivaceError

RETRY_AFTER_SECONDS = 2
_TYPES = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def error_body(error: VivaceError) -> dict[str, Any]:
    """{"error": {"message", "type", "param", "code"}}; the message ends with the hint."""
    message = f"{error.message} (hint: {error.hint})" if error.hint else error.message
    return _body(message, type(error).status, getattr(error, "field", None), error.code)


def error_response(error: VivaceError) -> Response:
    """The response for an error; 429 and 503 say when to come again."""
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)} if error.status in (429, 503) else {}
    return _response(error_body(error), error.status, headers)


def plain_error(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> Response:
    """The response for what is no error of ours: an unknown route, a wrong method, a missing key."""
    return _response(_body(message, status, None, code), status, headers or {})


def as_request_error(error: VivaceError) -> VivaceError:
    """An error met while a request was answered, as its client should see it: settings of the server stay private."""
    if isinstance(error, InvalidRequest) or error.status != 400:
        return error
    return VivaceError("the server could not answer this request", hint="the server's log has the details")


def _body(message: str, status: int, param: str | None, code: str) -> dict[str, Any]:
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _response(body: dict[str, Any], status: int, headers: dict[str, str]) -> Response:
    return Response(json.dumps(body), status, headers, media_type="application/json")
