"""What routes need besides the request: the shared state, reading of bodies, and how a model is described."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel

from vivace import __version__
from vivace.api.model import Model
from vivace.serve.bodies import parse_body
from vivace.serve.hub import Hub
from vivace.serve.limits import read_json
from vivace.serve.metrics import Metrics
from vivace.serve.openai_schemas import IGNORED

log = logging.getLogger("vivace.serve")

Body = TypeVar("Body", bound=BaseModel)
T = TypeVar("T")

LONG_BODY_BYTES = 32 << 10  # some milliseconds of tokenizing


class Routes:
    """Shared by all routes of one app. `started` is in seconds since 1970."""

    def __init__(self, hub: Hub, metrics: Metrics) -> None:
        self.hub = hub
        self.metrics = metrics
        self.started = int(time.time())

    async def read(self, request: Request, kind: type[Body]) -> Body:
        """The typed body of a request. Raises InvalidRequest, BodyTooLarge or HTTPException 415."""
        config = self.hub.config
        data = await read_json(request, max_bytes=config.max_body_bytes, max_depth=config.max_json_depth)
        body = parse_body(kind, data)
        ignored = IGNORED.keys() & data.keys()
        if ignored:
            log.debug("%s: without effect: %s", request.state.request_id, ", ".join(sorted(ignored)))
        return body

    async def prepare(self, request: Request, work: Callable[[], T]) -> T:
        """The result of `work`, which tokenizes the body of `request`: in a thread if that may take long, so that other
        clients do not wait for it."""
        size = request.headers.get("content-length", "")
        if size.isdecimal() and len(size) <= len(str(LONG_BODY_BYTES)) and int(size) < LONG_BODY_BYTES:
            return work()
        return await asyncio.to_thread(work)

    def describe(self, model: Model) -> dict[str, Any]:
        """Which model answered, and a fingerprint that changes when answers may change."""
        fingerprint = f"vivace-{__version__}-{model.info.digest[:8] or 'local'}"
        return {"model": model.info.name, "system_fingerprint": fingerprint}
