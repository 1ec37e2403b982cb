"""Several requests of one call: a window of them is with the engine, and none is left behind however the call ends."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

import pytest

from vivace.api.info import ModelInfo, OnReply
from vivace.api.running import IN_FLIGHT, arun, run
from vivace.errors import Overloaded
from vivace.pipelines.requests import EmbedRequest, GenerateRequest, Reply


@dataclass
class Receiver:
    """Wants `wanted` replies; the engine ends the request itself with its third one."""

    wanted: int = 3
    request: EmbedRequest = field(default_factory=lambda: EmbedRequest((1,)))
    is_over: bool = False
    engine_is_done: bool = False
    fed: int = 0

    def feed(self, reply: Reply) -> int | None:
        self.fed += 1
        self.engine_is_done = reply.finished is not None
        self.is_over = self.fed == self.wanted
        return self.fed


class Engine:
    """A port that answers from within submit: three replies a request, or none if it is `silent`; counts its jobs."""

    models: Mapping[str, ModelInfo] = {}

    def __init__(self, *, limit: int | None = None, silent: bool = False) -> None:
        self.limit = limit
        self.silent = silent
        self.jobs: set[int] = set()
        self.most = 0
        self.submitted = 0

    def submit(self, model: str, request: GenerateRequest | EmbedRequest, on_reply: OnReply) -> int:
        if self.submitted == self.limit:
            raise Overloaded("the queue is full")
        self.submitted += 1
        self.jobs.add(self.submitted)
        self.most = max(self.most, len(self.jobs))
        for finished in () if self.silent else (None, None, "stop"):
            on_reply(Reply(finished=finished))
        return self.submitted

    def cancel(self, request_id: int) -> None:
        self.jobs.discard(request_id)


def test_a_call_of_any_length_keeps_a_bounded_number_with_the_engine() -> None:
    engine = Engine()
    receivers = [Receiver() for _ in range(5 * IN_FLIGHT)]
    with_engine = []
    for _, _ in run(engine, "m", receivers):
        done = sum(receiver.is_over for receiver in receivers)
        with_engine.append(engine.submitted - done)
    assert max(with_engine) <= IN_FLIGHT
    assert all(receiver.fed == 3 for receiver in receivers)


def test_a_receiver_that_has_enough_frees_its_job_and_is_fed_no_more() -> None:
    engine = Engine()
    receivers = [Receiver(wanted=2), Receiver(wanted=1), Receiver()]
    items = list(run(engine, "m", receivers))
    assert items == [(0, 1), (0, 2), (1, 1), (2, 1), (2, 2), (2, 3)]
    assert engine.jobs == {3}, "the first two were cancelled, the engine ended the third itself"


def test_a_refusal_in_the_middle_cancels_what_was_begun() -> None:
    engine = Engine(limit=3, silent=True)
    with pytest.raises(Overloaded):
        list(run(engine, "m", [Receiver() for _ in range(5)]))
    assert engine.submitted == 3 and engine.jobs == set()


def test_leaving_an_async_call_cancels_what_is_with_the_engine() -> None:
    engine = Engine(silent=True)

    async def leave() -> None:
        async with aclosing(arun(engine, "m", [Receiver() for _ in range(2 * IN_FLIGHT)])) as items:
            waits = asyncio.ensure_future(anext(items))
            while not engine.jobs:
                await asyncio.sleep(0)
            waits.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits

    asyncio.run(leave())
    assert engine.most == IN_FLIGHT and engine.jobs == set()


def test_no_requests_are_over_at_once() -> None:
    assert list(run(Engine(), "m", [])) == []
