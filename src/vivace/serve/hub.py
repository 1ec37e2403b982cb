"""What all routes share: the models behind the port, whether the server takes requests, and its counters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from vivace.api.info import Port
from vivace.api.model import Model
from vivace.api.text import TextSide
from vivace.config import ServeConfig
from vivace.errors import EngineDied, UnknownModel, nearest

ENGINE_ANSWER_SECONDS = 2.0  # how long /metrics and readiness wait for the engine's counters


class Hub:
    """The server's state.

    port   the engine
    texts  tokenizer and template of each model by its name; known before the engine is ready
    stats  asks the engine for its counters
    is_up  whether the engine takes requests now
    """

    def __init__(
        self,
        config: ServeConfig,
        port: Port,
        texts: Mapping[str, TextSide],
        stats: Callable[[], Awaitable[dict[str, Any]]],
        is_up: Callable[[], bool],
    ) -> None:
        self.config = config
        self.port = port
        self.texts = texts
        self.is_draining = False
        self.in_flight = 0
        self.is_engine_up = is_up
        self._stats = stats
        self._idle = asyncio.Event()
        self._idle.set()

    def model(self, name: str) -> Model:
        """The model of that name. Raises UnknownModel, or EngineDied while the engine is starting."""
        if name not in self.texts:
            raise UnknownModel(f"unknown model '{name[:100]}'", field="model", hint=nearest(name[:100], self.texts))
        info = self.port.models.get(name)
        if info is None:
            raise EngineDied(f"the model '{name}' is still being loaded", hint="retry in a few seconds")
        return Model(info, self.texts[name], self.port)

    async def stats(self) -> dict[str, Any]:
        """The engine's counters. Raises EngineDied if it does not answer in time."""
        try:
            return await asyncio.wait_for(self._stats(), ENGINE_ANSWER_SECONDS)
        except TimeoutError:
            raise EngineDied("the engine process does not answer", hint="retry in a few seconds") from None

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Counts a request from its first byte to the end of its answer."""
        self.in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self._idle.set()

    async def wait_idle(self) -> None:
        """Wait until no request is being answered."""
        await self._idle.wait()
