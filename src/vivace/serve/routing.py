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
from vivace.serve.limits import parse_json, read_json_bytes
from vivace.serve.metrics import Metrics
from vivace.serve.openai_schemas import IGNORED

log = logging.getLogger("vivace.serve")

Body = TypeVar("Body", bound=BaseModel)
T = TypeVar("T")

LONG_BODY_BYTES = 32 << 10  # some milliseconds of parsing and tokenizing


class Routes:
    """Shared by all routes of one app. `started` is in seconds since 1970."""

    def __init__(self, hub: Hub, metrics: Metrics) -> None:
        self.hub = hub
        self.metrics = metrics
        self.started = int(time.time())

    async def read(self, request: Request, kind: type[Body]) -> Body:
        """The typed body of a request. Raises InvalidRequest, BodyTooLarge or HTTPException 415."""
        raw = await read_json_bytes(request, self.hub.config.max_body_bytes)
        request.state.is_long = len(raw) > LONG_BODY_BYTES
        return await self.prepare(request, lambda: self._parse(raw, kind, request.state.request_id))

    async def prepare(self, request: Request, work: Callable[[], T]) -> T:
        """The result of `work`, which reads or tokenizes the body of `request`: in a thread if that may take long, so
        that other clients do not wait for it."""
        return await asyncio.to_thread(work) if request.state.is_long else work()

    def _parse(self, raw: bytes, kind: type[Body], request_id: str) -> Body:
        data = parse_json(raw, self.hub.config.max_json_depth)
        body = parse_body(kind, data)
        ignored = IGNORED.keys() & data.keys()
        if ignored:
            log.debug("%s: without effect: %s", request_id, ", ".join(sorted(ignored)))
        return body

    def describe(self, model: Model) -> dict[str, Any]:
        """Which model answered, and a fingerprint that changes when answers may change."""
        fingerprint = f"vivace-{__version__}-{model.info.digest[:8] or 'local'}"
        return {"model": model.info.name, "system_fingerprint": fingerprint}
