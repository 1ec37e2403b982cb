"""Whole answers: wait for one while watching whether its client is still there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import TypeVar

from fastapi import Request

from vivace.errors import Cancelled

T = TypeVar("T")


async def while_connected(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`; it is cancelled as soon as the client goes away. Raises Cancelled then.

    The body must have been read to its end: after it only the disconnect can arrive."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        request.state.client_closed = True
        raise Cancelled("the client closed the connection")
    finally:
        for each in (task, watch):
            each.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(task, watch, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
