"""Several requests in flight at once, drained from one queue: blocking for threads, awaiting for event loops."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Generator, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Protocol, TypeVar

from vivace.api.info import Port
from vivace.pipelines.requests import EmbedRequest, GenerateRequest, Reply

Item = TypeVar("Item", covariant=True)


class Receiver(Protocol[Item]):
    """The client side of one request: makes items of the replies of the engine."""

    @property
    def request(self) -> GenerateRequest | EmbedRequest: ...

    @property
    def is_over(self) -> bool: ...

    @property
    def engine_is_done(self) -> bool: ...

    def feed(self, reply: Reply) -> Item | None: ...


def run(port: Port, model: str, receivers: Sequence[Receiver[Item]]) -> Generator[tuple[int, Item], None, None]:
    """(index of the receiver, item) as they come, until all are over. Leaving early cancels what still runs."""
    queue: SimpleQueue[tuple[int, Reply]] = SimpleQueue()
    jobs: list[int] = []
    try:
        for index, receiver in enumerate(receivers):
            jobs.append(port.submit(model, receiver.request, partial(_put, queue, index)))
        while not all(receiver.is_over for receiver in receivers):
            index, reply = queue.get()
            item = receivers[index].feed(reply)
            _end_early(port, jobs[index], receivers[index])
            if item is not None:
                yield index, item
    finally:
        _cancel(port, jobs, receivers)


async def arun(port: Port, model: str, receivers: Sequence[Receiver[Item]]) -> AsyncGenerator[tuple[int, Item], None]:
    """The same for an event loop. Close the iterator (contextlib.aclosing) when leaving it early."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[int, Reply]] = asyncio.Queue()
    jobs: list[int] = []

    def put(index: int, reply: Reply) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop has ended, nobody waits any more
            loop.call_soon_threadsafe(queue.put_nowait, (index, reply))

    try:
        for index, receiver in enumerate(receivers):
            jobs.append(port.submit(model, receiver.request, partial(put, index)))
        while not all(receiver.is_over for receiver in receivers):
            index, reply = await queue.get()
            item = receivers[index].feed(reply)
            _end_early(port, jobs[index], receivers[index])
            if item is not None:
                yield index, item
    finally:
        _cancel(port, jobs, receivers)


def _put(queue: SimpleQueue[tuple[int, Reply]], index: int, reply: Reply) -> None:
    queue.put((index, reply))


def _end_early(port: Port, job: int, receiver: Receiver[Item]) -> None:
    # A stop string is seen on this side only: the job must not go on while others of the same batch still run.
    if receiver.is_over and not receiver.engine_is_done:
        port.cancel(job)


def _cancel(port: Port, jobs: Sequence[int], receivers: Sequence[Receiver[Item]]) -> None:
    for job, receiver in zip(jobs, receivers, strict=False):
        if not receiver.engine_is_done and not receiver.is_over:
            port.cancel(job)
