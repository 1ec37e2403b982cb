"""The engine process as a port: the same submit and cancel as the engine itself, over a pair of sockets."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Mapping
from typing import Any

import zmq
import zmq.asyncio

from vivace.api.info import ModelInfo, OnReply
from vivace.errors import ConfigError, EngineDied, UnknownModel, nearest
from vivace.pipelines.requests import EmbedRequest, GenerateRequest, Reply, described
from vivace.serve import protocol

log = logging.getLogger("vivace.serve")


class RemoteEngine:
    """Talks to one life of the engine process at a time. All methods belong to the thread of the event loop.

    `attach` starts with new sockets, `detach` ends all requests in flight with EngineDied.
    """

    def __init__(self) -> None:
        self.models: Mapping[str, ModelInfo] = {}
        self._context = zmq.asyncio.Context()
        self._ids = itertools.count(1)
        self._waiting: dict[int, OnReply] = {}
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._requests: zmq.asyncio.Socket | None = None
        self._replies: zmq.asyncio.Socket | None = None
        self._is_attached = False

    @property
    def in_flight(self) -> int:
        """Requests that wait for their end."""
        return len(self._waiting)

    async def attach(self, requests_address: str, replies_address: str) -> protocol.Ready | protocol.Failed:
        """Bind the sockets of a new engine process and wait for its first message; then let `read` run.

        Raises ConfigError if the addresses are no place for sockets.
        """
        self._requests = self._bind(zmq.PUSH, requests_address)
        self._replies = self._bind(zmq.PULL, replies_address)
        first = protocol.decode_from_engine(await self._replies.recv())
        assert isinstance(first, protocol.Ready | protocol.Failed), first
        if isinstance(first, protocol.Ready):
            self.models = {info.name: info for info in first.models}
            self._is_attached = True
        return first

    def submit(self, model: str, request: GenerateRequest | EmbedRequest, on_reply: OnReply) -> int:
        """Send a request. Raises UnknownModel or EngineDied; everything else comes as a reply."""
        if not self._is_attached:
            raise engine_died()
        if model not in self.models:
            raise UnknownModel(f"unknown model '{model}'", field="model", hint=nearest(model, self.models))
        request_id = next(self._ids)
        kind = protocol.Generate if isinstance(request, GenerateRequest) else protocol.Embed
        self._waiting[request_id] = on_reply
        self._send(kind(request_id, model, request))  # type: ignore[arg-type]
        return request_id

    def cancel(self, request_id: int) -> None:
        """Stop a request; nothing more is told about it."""
        if self._waiting.pop(request_id, None) is not None and self._requests is not None:
            self._send(protocol.Cancel(request_id))

    async def stats(self) -> dict[str, Any]:
        """The engine's counters. Raises EngineDied."""
        if not self._is_attached:
            raise engine_died()
        request_id = next(self._ids)
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._asked[request_id] = future
        self._send(protocol.AskStats(request_id))
        try:
            return await future
        finally:
            self._asked.pop(request_id, None)

    def detach(self) -> None:
        """The engine process has ended and `read` with it: tell everybody who waits, and let go of the sockets."""
        self._is_attached = False
        for socket in (self._requests, self._replies):
            if socket is not None:
                socket.close(linger=0)
        self._requests = self._replies = None
        waiting, self._waiting = self._waiting, {}
        error = engine_died()
        for on_reply in waiting.values():
            on_reply(Reply(finished="error", error=described(error)))
        for future in self._asked.values():
            if not future.done():
                future.set_exception(error)

    def close(self) -> None:
        """Free what is left; call after `detach`."""
        self._context.destroy(linger=0)

    def _bind(self, kind: int, address: str) -> zmq.asyncio.Socket:
        socket = self._context.socket(kind)
        socket.set_hwm(0)  # admission is the engine's decision: nothing may be dropped or block on the way
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            socket.close(linger=0)
            message = f"there can be no socket in the folder for temporary files: {error}"
            raise ConfigError(message, hint="set TMPDIR to a folder with a short name") from error
        return socket

    def _send(self, message: protocol.ToEngine) -> None:
        assert self._requests is not None
        # Without a high-water mark a send never waits, so its future is done at once.
        self._requests.send(protocol.encode(message))

    async def read(self) -> None:
        """Hand out what the engine process sends, for as long as it can be understood."""
        assert self._replies is not None
        while True:
            message = protocol.decode_from_engine(await self._replies.recv())
            if isinstance(message, protocol.Step):
                for wire in message.replies:
                    self._hand_out(wire)
            elif isinstance(message, protocol.Stats):
                future = self._asked.get(message.id)
                if future is not None and not future.done():
                    future.set_result(message.values)

    def _hand_out(self, wire: protocol.WireReply) -> None:
        on_reply = self._waiting.get(wire.id)
        if on_reply is None:  # cancelled on this side already
            return
        if wire.finished is not None:
            del self._waiting[wire.id]
        on_reply(protocol.unpack_reply(wire))


def engine_died() -> EngineDied:
    """The error for requests that were in flight, or come while the engine is starting again."""
    return EngineDied("the engine process is not running", hint="it is being started again: retry in a few seconds")
