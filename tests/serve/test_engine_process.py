"""The engine's side of the protocol, with a fake engine and a socket that keeps what is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from vivace.api.info import ModelInfo
from vivace.errors import EngineDied, InvalidRequest
from vivace.pipelines.requests import EmbedRequest, GenerateRequest, Reply, TokenLogprob, Tokens, Usage, Vector
from vivace.serve import protocol
from vivace.serve.engine_process import Outbox, handle
from vivace.weights.measured import Quality


class FakeSocket:
    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, data: bytes) -> None:
        self.sent.append(protocol.decode_from_engine(data))


class FakeEngine:
    """Notes what it is asked for; `error` is raised by submit."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.replies: dict[int, Callable[[Reply], None]] = {}
        self.cancelled: list[int] = []

    def submit(self, model: str, request: object, on_reply: Callable[[Reply], None], *, request_id: int) -> int:
        if self.error is not None:
            raise self.error
        self.replies[request_id] = on_reply
        return request_id

    def cancel(self, request_id: int) -> None:
        self.cancelled.append(request_id)

    def stats(self) -> dict[str, Any]:
        return {"steps": 3, "lanes": {"a.b": {"running": 1}}}


def _start(engine: FakeEngine, request_id: int) -> tuple[bool, list[Any], Outbox]:
    socket = FakeSocket()
    outbox = Outbox(socket)  # type: ignore[arg-type]
    is_alive = handle(protocol.Generate(request_id, "m", GenerateRequest((1,))), engine, outbox)  # type: ignore[arg-type]
    return is_alive, socket.sent, outbox


def test_what_a_model_is_travels_whole() -> None:
    quality = Quality(350, 0.0035, 0.963, -0.0006)
    infos = [
        ModelInfo("m", "generate", 10, 20, digest="d", activations="mix 12", quality=quality),
        ModelInfo("e", "embed", 1, 2),
    ]
    ready = protocol.decode_from_engine(protocol.encode(protocol.Ready(infos)))
    assert isinstance(ready, protocol.Ready) and ready.models == infos


def test_all_replies_of_a_step_travel_as_one_message() -> None:
    engine = FakeEngine()
    _, sent, outbox = _start(engine, 1)
    handle(protocol.Embed(2, "m", EmbedRequest((1,))), engine, outbox)  # type: ignore[arg-type]
    first = Reply(Tokens((5,), (TokenLogprob(5, -0.5, ((5, -0.5), (6, -1.0))),)), usage=Usage(1, 1, 0))
    second = Reply(Vector(b"1234"), "stop", None, Usage(1))
    engine.replies[1](first)
    engine.replies[2](second)
    assert sent == []
    outbox.flush()
    outbox.flush()
    (step,) = sent
    assert [wire.id for wire in step.replies] == [1, 2]
    assert [protocol.unpack_reply(wire) for wire in step.replies] == [first, second]


def test_a_refused_request_is_told_at_once_and_the_engine_lives() -> None:
    is_alive, sent, _ = _start(FakeEngine(InvalidRequest("bad", field="x", hint="h")), 7)
    assert is_alive
    (wire,) = sent[0].replies
    assert (wire.id, wire.finished, wire.error) == (7, "error", ("invalid_value", "bad", "h", "x"))


def test_a_fault_in_a_check_fails_its_request_alone(caplog: pytest.LogCaptureFixture) -> None:
    is_alive, sent, _ = _start(FakeEngine(ZeroDivisionError("inside")), 7)
    assert is_alive and "ZeroDivisionError" in caplog.text
    assert sent[0].replies[0].error[0] == "step_failed"
    assert "inside" not in str(sent[0].replies[0].error), "the client learns nothing of our insides"


def test_an_engine_that_died_ends_its_process() -> None:
    is_alive, sent, _ = _start(FakeEngine(EngineDied("the loop ended")), 7)
    assert not is_alive
    assert sent[0].replies[0].error[0] == "engine_died"


def test_cancel_and_stats_are_passed_on() -> None:
    engine, socket = FakeEngine(), FakeSocket()
    outbox = Outbox(socket)  # type: ignore[arg-type]
    assert handle(protocol.Cancel(9), engine, outbox)  # type: ignore[arg-type]
    assert handle(protocol.AskStats(4), engine, outbox)  # type: ignore[arg-type]
    assert engine.cancelled == [9]
    assert socket.sent == [protocol.Stats(4, engine.stats())]


def test_every_message_survives_the_wire() -> None:
    request = GenerateRequest(
        (1, 2), 5, {"logit_bias": {"value": {7: -100.0}}, "top_k": {"value": 3}}, 2**64 - 1, (9,), True, 1, 2, 0
    )
    for message in (
        protocol.Generate(1, "m", request),
        protocol.Embed(1, "m", EmbedRequest((1,), dimensions=8, normalize=False, skip=1)),
        protocol.Cancel(3),
    ):
        assert protocol.decode_to_engine(protocol.encode(message)) == message
    ready = protocol.Ready([ModelInfo("m", "embed", 5, 6, 7, (1, 2), "d")])
    assert protocol.decode_from_engine(protocol.encode(ready)) == ready
