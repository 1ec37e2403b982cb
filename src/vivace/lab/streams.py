"""Requests through the public engine with a clock at each reply: the raw material of every measurement of work.

    with Streams(engine, "smollm2") as streams:
        streams.start(prompts, max_tokens=80)
        window = streams.window(64)

Prompts are random ids from a fixed seed; answers are greedy and run on to their full length. Replies are timed in the
engine's own thread, when they are handed out.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns
from types import TracebackType
from typing import Self

from vivace.api.engine import Engine
from vivace.api.session import error_of
from vivace.errors import EngineError
from vivace.pipelines.requests import GenerateRequest, Reply, Tokens, ToldError

WAIT_S = 600.0  # a reply that takes longer is a fault


class Prompts:
    """Random prompts that no earlier one shares a prefix with: ids of 100 .. vocab_size, from a fixed seed."""

    def __init__(self, vocab_size: int, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._ids = range(min(100, vocab_size // 2), vocab_size)

    def make(self, length: int) -> tuple[int, ...]:
        """The next prompt, of `length` ids."""
        return tuple(self._random.choices(self._ids, k=length))


@dataclass(eq=False)
class Stream:
    """One request: when it was submitted and when each token of its answer came, in nanoseconds of one clock."""

    request: GenerateRequest
    submitted_ns: int = 0
    token_ns: list[int] = field(default_factory=list)
    job: int = 0
    cached: int = 0
    error: ToldError | None = None
    is_over: bool = False

    @property
    def first_token_ms(self) -> float:
        """Time from the request to the first token of its answer."""
        return (self.token_ns[0] - self.submitted_ns) / 1e6


@dataclass(frozen=True)
class Window:
    """A stretch of time in which all streams were answering: its length, and the tokens that came in it."""

    seconds: float
    tokens: int
    gaps_ms: tuple[float, ...]

    @property
    def rate(self) -> float:
        """Tokens per second over all streams."""
        return self.tokens / self.seconds


class Streams:
    """Requests to one model of an engine. Those that still run at the end of the block are cancelled."""

    def __init__(self, engine: Engine, model: str) -> None:
        self._engine = engine
        self._model = model
        self._changed = threading.Condition()
        self.streams: list[Stream] = []

    def start(self, prompts: Sequence[tuple[int, ...]], max_tokens: int) -> list[Stream]:
        """Submit one request per prompt."""
        started = []
        for ids in prompts:
            stream = Stream(GenerateRequest(ids, max_tokens=max_tokens, ignore_eos=True))
            stream.submitted_ns = perf_counter_ns()
            stream.job = self._engine.submit(self._model, stream.request, self._listener(stream))
            started.append(stream)
        self.streams += started
        return started

    def wait(self, streams: Sequence[Stream], tokens: int) -> None:
        """Return when each of the streams has `tokens` tokens. Raises the error that a reply carries."""
        with self._changed:
            is_done = self._changed.wait_for(
                lambda: any(s.error for s in streams) or all(len(s.token_ns) >= tokens or s.is_over for s in streams),
                timeout=WAIT_S,
            )
        for stream in streams:
            if stream.error is not None:
                raise error_of(*stream.error)
        if not is_done:
            raise EngineError(f"no reply for {WAIT_S:.0f} s", hint="use a smaller model, or fewer streams")
        assert all(len(stream.token_ns) >= tokens for stream in streams), "an answer ended before its length"

    def window(self, streams: Sequence[Stream], tokens: int) -> Window:
        """The stretch that begins when the last stream has its first token and ends `tokens` tokens of it later."""
        self.wait(streams, 1)
        last = max(streams, key=lambda stream: stream.token_ns[0])
        self.wait([last], tokens + 1)
        return window_between(streams, last.token_ns[0], last.token_ns[tokens])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for stream in self.streams:
            if not stream.is_over:
                self._engine.cancel(stream.job)
        with self._changed:
            self._changed.wait_for(lambda: all(stream.is_over for stream in self.streams), timeout=WAIT_S)

    def _listener(self, stream: Stream) -> _Listener:
        return _Listener(stream, self._changed)


@dataclass(frozen=True, eq=False)
class _Listener:
    """Takes the replies of one stream."""

    stream: Stream
    changed: threading.Condition

    def __call__(self, reply: Reply) -> None:
        now, stream = perf_counter_ns(), self.stream
        known = len(stream.token_ns)
        if isinstance(reply.output, Tokens):
            stream.token_ns.extend([now] * len(reply.output.ids))
        if reply.finished is None and known and known // 8 == len(stream.token_ns) // 8:
            return  # whoever waits is told now and then: waking it at every token would slow what is measured
        with self.changed:
            stream.cached = max(stream.cached, reply.usage.cached)
            stream.error = reply.error
            stream.is_over = reply.finished is not None
            self.changed.notify_all()


def window_between(streams: Sequence[Stream], begin_ns: int, end_ns: int) -> Window:
    """What came after `begin_ns` and not after `end_ns`: tokens, and the time each one came after the one before it."""
    gaps, count = [], 0
    for stream in streams:
        for before, now in zip(stream.token_ns, stream.token_ns[1:], strict=False):
            if begin_ns < now <= end_ns:
                count += 1
                gaps.append((now - before) / 1e6)
    return Window((end_ns - begin_ns) / 1e9, count, tuple(gaps))


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` of all values do not exceed; 0.0 of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0
