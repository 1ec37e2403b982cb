"""Several requests in flight at once, drained from one queue: blocking for threads, awaiting for event loops."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

from vivace.api.info import Port
from vivace.pipelines.requests import EmbedRequest, GenerateRequest, Reply

Item = TypeVar("Item", covariant=True)

IN_FLIGHT = 256  # requests of one call with the engine at once: several steps' worth


class Receiver(Protocol[Item]):
    """The client side of one request: makes items of the replies of the engine."""

    @property
    def request(self) -> GenerateRequest | EmbedRequest: ...

    @property
    def is_over(self) -> bool: ...

    @property
    def engine_is_done(self) -> bool: ...

    def feed(self, reply: Reply) -> Item | None: ...


class _Requests(Generic[Item]):
    """The requests of one call. At most IN_FLIGHT are with the engine at a time: its queue is bounded for all callers
    together, and a call must not be refused for its own length.

    is_over  every receiver has all it wants
    """

    def __init__(
        self, port: Port, model: str, receivers: Sequence[Receiver[Item]], put: Callable[[int, Reply], None]
    ) -> None:
        self._port = port
        self._model = model
        self._receivers = receivers
        self._put = put
        self._jobs: dict[int, int] = {}  # index of the receiver -> job, of those that are with the engine
        self._begun = 0

    @property
    def is_over(self) -> bool:
        return not self._jobs and self._begun == len(self._receivers)

    def submit_next(self) -> None:
        while self._begun < len(self._receivers) and len(self._jobs) < IN_FLIGHT:
            index = self._begun
            self._begun += 1
            request = self._receivers[index].request
            self._jobs[index] = self._port.submit(self._model, request, partial(self._put, index))

    def feed(self, index: int, reply: Reply) -> Item | None:
        if index not in self._jobs:  # the receiver had enough before the engine knew
            return None
        receiver = self._receivers[index]
        item = receiver.feed(reply)
        if receiver.is_over:
            job = self._jobs.pop(index)
            # A stop string is seen on this side only: the job must not go on while others of this call still run.
            if not receiver.engine_is_done:
                self._port.cancel(job)
            self.submit_next()
        return item

    def cancel(self) -> None:
        for index, job in self._jobs.items():
            if not self._receivers[index].engine_is_done:
                self._port.cancel(job)


def run(port: Port, model: str, receivers: Sequence[Receiver[Item]]) -> Generator[tuple[int, Item], None, None]:
    """(index of the receiver, item) as they come, until all are over. Leaving early cancels what still runs."""
    queue: SimpleQueue[tuple[int, Reply]] = SimpleQueue()
    requests = _Requests(port, model, receivers, lambda index, reply: queue.put((index, reply)))
    try:
        requests.submit_next()
        while not requests.is_over:
            index, reply = queue.get()
            item = requests.feed(index, reply)
            if item is not None:
                yield index, item
    finally:
        requests.cancel()


async def arun(port: Port, model: str, receivers: Sequence[Receiver[Item]]) -> AsyncGenerator[tuple[int, Item], None]:
    """The same for an event loop. Close the iterator (contextlib.aclosing) when leaving it early."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[int, Reply]] = asyncio.Queue()

    home = threading.get_ident()

    def put(index: int, reply: Reply) -> None:
        if threading.get_ident() == home:  # a server's replies come here anyway: no need to wake the event loop up
            queue.put_nowait((index, reply))
            return
        with contextlib.suppress(RuntimeError):  # the event loop has ended, nobody waits any more
            loop.call_soon_threadsafe(queue.put_nowait, (index, reply))

    requests = _Requests(port, model, receivers, put)
    try:
        requests.submit_next()
        while not requests.is_over:
            index, reply = await queue.get()
            item = requests.feed(index, reply)
            if item is not None:
                yield index, item
    finally:
        requests.cancel()
