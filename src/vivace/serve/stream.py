"""Server-sent events: one `data:` line per chunk, errors as data once the status is sent, `[DONE]` at the end."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from vivace.errors import VivaceError
from vivace.serve.waiting import while_connected
from vivace.serve.wire_errors import as_request_error, error_body

log = logging.getLogger("vivace.serve")

HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
DONE = b"data: [DONE]\n\n"


def event(data: Mapping[str, Any]) -> bytes:
    """One event. JSON without raw line breaks needs one data line."""
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode() + b"\n\n"


async def stream_response(request: Request, chunks: AsyncGenerator[Mapping[str, Any], None]) -> Response:
    """Send chunks as they come. What fails before the first chunk is raised here, so that it has its own status."""
    try:
        first = await while_connected(request, anext(chunks))
    except BaseException:
        await chunks.aclose()
        raise
    return _Stream(_events(request, first, chunks), media_type="text/event-stream", headers=HEADERS)


class _Stream(StreamingResponse):
    """Closes its events however it ends, also when the client left before they began."""

    body_iterator: AsyncGenerator[bytes, None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self.body_iterator):
            await super().__call__(scope, receive, send)


async def _events(
    request: Request, first: Mapping[str, Any], chunks: AsyncGenerator[Mapping[str, Any], None]
) -> AsyncGenerator[bytes, None]:
    # The client's leaving ends this generator, which closes `chunks`, which cancels the jobs behind them.
    request.state.client_closed = True
    async with aclosing(chunks):
        yield event(first)
        try:
            async for chunk in chunks:
                yield event(chunk)
                # Chunks may lie ready in number: others get their turn, and a lost connection is noticed.
                await asyncio.sleep(0)
        except VivaceError as error:
            yield event(error_body(as_request_error(error)))
        except Exception:
            log.exception("an answer failed while it was streamed")
            yield event(error_body(VivaceError("the server failed", hint="the server's log has the details")))
        yield DONE
    request.state.client_closed = False
