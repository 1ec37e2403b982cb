"""Counting what a request used, over all its choices, and observing it for the metrics."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Self

from vivace.api.model import Model
from vivace.api.results import Completion, Delta
from vivace.api.session import Collector, Session
from vivace.serve.metrics import Metrics


class UsageCount:
    """Usage of several choices. Choices of one prompt share it, so the prompt is counted once by whoever reports."""

    def __init__(self) -> None:
        self._generated = 0
        self._accepted = 0
        self._rejected = 0
        self._cached: dict[int, int] = {}

    def add(self, index: int, delta: Delta) -> None:
        """Take the usage that the last delta of a choice carries."""
        if delta.usage is not None:
            self._generated += delta.usage.generated
            self._accepted += delta.usage.accepted
            self._rejected += delta.usage.rejected
            self._cached[index] = delta.usage.cached

    def json(self, prompt_tokens: int, *, firsts: Sequence[int] = (0,)) -> dict[str, Any]:
        """The official usage object. `firsts` are the indexes of the first choice of each prompt: what the cache gave
        to further choices of the same prompt came from this very request."""
        cached = sum(self._cached.get(index, 0) for index in firsts)
        guesses = {"accepted_prediction_tokens": self._accepted, "rejected_prediction_tokens": self._rejected}
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": self._generated,
            "total_tokens": prompt_tokens + self._generated,
            "prompt_tokens_details": {"cached_tokens": cached},
            **({"completion_tokens_details": guesses} if any(guesses.values()) else {}),
        }

    @classmethod
    async def collect(
        cls, deltas: AsyncGenerator[tuple[int, Delta], None], count: int
    ) -> tuple[list[Completion], Self]:
        """The whole answers of `count` choices, and their usage."""
        usage = cls()
        collectors = [Collector() for _ in range(count)]
        async with aclosing(deltas):
            async for index, delta in deltas:
                collectors[index].add(delta)
                usage.add(index, delta)
        return [collector.completion() for collector in collectors], usage


async def observed(
    model: Model, sessions: Sequence[Session], metrics: Metrics
) -> AsyncGenerator[tuple[int, Delta], None]:
    """The deltas of sessions, with the time to the first token and the number of tokens counted."""
    started = time.perf_counter()
    is_first = True
    async with aclosing(model.arun(sessions)) as items:
        async for index, delta in items:
            if is_first:
                metrics.first_token(model.info.name, time.perf_counter() - started)
                is_first = False
            if delta.usage is not None:
                used = delta.usage
                metrics.tokens(model.info.name, used.prompt, used.cached, used.generated)
            yield index, delta
