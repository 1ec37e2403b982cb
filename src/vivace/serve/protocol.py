"""The messages between the HTTP process and the engine process: msgspec structs, encoded as MessagePack.

Requests travel one a message; replies travel one message a step, with everything that the step led to.
"""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import msgspec

from vivace.api.info import ModelInfo
from vivace.config import EngineConfig
from vivace.pipelines.requests import EmbedRequest, GenerateRequest, Reply, Tokens, ToldError, Usage, Vector


class Setup(msgspec.Struct):
    """First line on the engine's standard input, as JSON: what to run and where to listen."""

    version: str  # of the HTTP process: the package may have been replaced since it started
    models: dict[str, str]  # served name -> short name, hub id or path
    config: EngineConfig
    requests_address: str
    replies_address: str


class Generate(msgspec.Struct, tag=True, array_like=True):
    """Start a generate request."""

    id: int
    model: str
    request: GenerateRequest


class Embed(msgspec.Struct, tag=True, array_like=True):
    """Start an embed request."""

    id: int
    model: str
    request: EmbedRequest


class Cancel(msgspec.Struct, tag=True, array_like=True):
    """Stop a request."""

    id: int


class AskStats(msgspec.Struct, tag=True, array_like=True):
    """Ask for the engine's counters."""

    id: int


ToEngine = Generate | Embed | Cancel | AskStats


class WireReply(msgspec.Struct, array_like=True):
    """A Reply with the id of its request; its output stands in one of two fields."""

    id: int
    tokens: Tokens | None = None
    vector: bytes | None = None
    finished: str | None = None
    stop_id: int | None = None
    usage: tuple[int, ...] = ()  # the fields of Usage
    error: ToldError | None = None


class Ready(msgspec.Struct, tag=True, array_like=True):
    """All models are loaded."""

    models: list[ModelInfo]


class Failed(msgspec.Struct, tag=True, array_like=True):
    """The engine cannot start, and starting it again would not help."""

    error: ToldError


class Step(msgspec.Struct, tag=True, array_like=True):
    """All replies of one step."""

    replies: list[WireReply]


class Stats(msgspec.Struct, tag=True, array_like=True):
    """The engine's counters."""

    id: int
    values: dict[str, Any]


FromEngine = Ready | Failed | Step | Stats

_encoder = msgspec.msgpack.Encoder()
_to_engine: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ToEngine)
_from_engine: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(FromEngine)


def encode(message: ToEngine | FromEngine) -> bytes:
    """A message as bytes."""
    return _encoder.encode(message)


def decode_to_engine(data: bytes) -> ToEngine:
    """What the HTTP process sent."""
    message: ToEngine = _to_engine.decode(data)
    return message


def decode_from_engine(data: bytes) -> FromEngine:
    """What the engine process sent."""
    message: FromEngine = _from_engine.decode(data)
    return message


def pack_reply(request_id: int, reply: Reply) -> WireReply:
    """A reply as it travels."""
    return WireReply(
        request_id,
        tokens=reply.output if isinstance(reply.output, Tokens) else None,
        vector=reply.output.data if isinstance(reply.output, Vector) else None,
        finished=reply.finished,
        stop_id=reply.stop_id,
        usage=astuple(reply.usage),
        error=reply.error,
    )


def unpack_reply(wire: WireReply) -> Reply:
    """A reply as it was."""
    output = Vector(wire.vector) if wire.vector is not None else wire.tokens
    return Reply(output, wire.finished, wire.stop_id, Usage(*wire.usage), wire.error)
