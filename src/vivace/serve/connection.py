"""One HTTP connection: uvicorn's, with a time limit for what a client keeps us waiting for, and errors as JSON."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from vivace.serve.wire_errors import plain_error


class Connection(H11Protocol):
    """Ends a connection that has not brought the whole head of a request within `head_seconds`, or that goes on sending
    the body of a request that is already answered."""

    head_seconds: ClassVar[float] = 30.0

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP with the error object; where an answer was already begun, end the connection."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        message = "this is no valid HTTP request (hint: the server speaks HTTP/1.1, without TLS)"
        reply = plain_error(400, "invalid_http", message, {"Connection": "close"})
        head = h11.Response(status_code=400, headers=reply.raw_headers, reason=b"Bad Request")
        for event in (head, h11.Data(data=bytes(reply.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _should_upgrade(self) -> bool:
        """No other protocol is offered; a client that asks for one gets plain HTTP, and no warning is worth a line."""
        return False

    def _watch(self) -> None:
        is_waiting = self.conn.their_state is h11.IDLE or (
            self.conn.their_state is h11.SEND_BODY and self.conn.our_state is h11.DONE
        )
        if not is_waiting or self.transport.is_closing():
            self._stop_watching()
        elif self._patience is None:
            self._patience = self.loop.call_later(self.head_seconds, self._end)

    def _stop_watching(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _end(self) -> None:
        self._patience = None
        self.transport.close()
