"""Keeps one engine process alive: starts it, notices its end or silence, and starts it again with growing pauses."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import os
import sys
import tempfile
import time
from collections.abc import Mapping

import msgspec

from vivace import __version__
from vivace.api.session import error_of
from vivace.config import EngineConfig
from vivace.errors import EngineDied, VivaceError
from vivace.serve import protocol
from vivace.serve.remote import RemoteEngine

log = logging.getLogger("vivace.serve")

FIRST_PAUSE = 0.5  # seconds before an engine is started again
LONGEST_PAUSE = 30.0
STEADY_SECONDS = 60.0  # an engine that ran so long starts the pauses over
SILENCE_SECONDS = 30.0  # an engine that says nothing for so long, though asked, is ended and started again


class State(enum.Enum):
    """STARTING: models are being loaded (again). READY: requests are served. FAILED: it will not start."""

    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"


class Supervisor:
    """One engine process and the port to it. `run` is the task that keeps it; `close` ends both.

    restarts  engine processes started after the first
    failure   why the engine will not start
    """

    def __init__(
        self, models: Mapping[str, str], config: EngineConfig, *, silence_seconds: float = SILENCE_SECONDS
    ) -> None:
        """`models`: served name -> short name, hub id or path."""
        self.remote = RemoteEngine()
        self.state = State.STARTING
        self.failure: VivaceError | None = None
        self.restarts = 0
        self.pid: int | None = None
        self._models = dict(models)
        self._config = config
        self._silence_seconds = silence_seconds
        self._was_ready = False
        self._changed = asyncio.Event()

    async def wait_ready(self) -> None:
        """Wait until requests are served. Raises the error for which the engine will not start."""
        while self.state is not State.READY:
            if self.failure is not None:
                raise self.failure
            self._changed.clear()
            await self._changed.wait()

    async def run(self) -> None:
        """Start the engine and start it again whenever it ends, until it refuses to start or the task is cancelled."""
        pause = FIRST_PAUSE
        while True:
            started = time.monotonic()
            status = await self._live_once()
            if not self._was_ready and self.failure is None:
                message = f"the engine process ended with status {status} before it could serve"
                self._fail(EngineDied(message, hint="the lines above say why"))
            if self.failure is not None:
                return
            self._set(State.STARTING)
            if time.monotonic() - started > STEADY_SECONDS:
                pause = FIRST_PAUSE
            log.error("the engine process ended; starting it again in %.1f s", pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            self.restarts += 1

    async def _live_once(self) -> int | None:
        """One life of the engine process, to its exit status."""
        with tempfile.TemporaryDirectory(prefix="vivace-", ignore_cleanup_errors=True) as folder:
            addresses = f"ipc://{folder}/requests", f"ipc://{folder}/replies"
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "vivace.serve.engine_process", stdin=asyncio.subprocess.PIPE, env=dict(os.environ)
            )
            self.pid = process.pid
            life = asyncio.create_task(self._talk(*addresses))
            ended = asyncio.create_task(process.wait())
            try:
                await self._tell(process, *addresses)
                await asyncio.wait({life, ended}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await self._end(process)
                life.cancel()
                await asyncio.gather(life, ended, return_exceptions=True)
                self.remote.detach()
                self.pid = None
            if not life.cancelled():
                life.result()  # a fault of ours
            return process.returncode

    async def _talk(self, *addresses: str) -> None:
        """Greet the engine process and listen to it; ends when there is no use in going on with it."""
        try:
            first = await self.remote.attach(*addresses)
        except VivaceError as error:
            self._fail(error)
            return
        if isinstance(first, protocol.Failed):
            self._fail(error_of(*first.error))
            return
        self._was_ready = True
        self._set(State.READY)
        await self._listen()

    async def _listen(self) -> None:
        """Ends when the engine process cannot be understood, or is silent though it was asked."""
        reading, asking = asyncio.create_task(self.remote.read()), asyncio.create_task(self._ask())
        try:
            await asyncio.wait({reading, asking}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                log.error("a message of the engine process cannot be read", exc_info=reading.exception())
            else:
                log.error("the engine process has not answered for %g s", self._silence_seconds)
        finally:
            reading.cancel()
            asking.cancel()
            await asyncio.gather(reading, asking, return_exceptions=True)

    async def _ask(self) -> None:
        """Ask for the counters, whose thread does not compute, until they do not come."""
        with contextlib.suppress(TimeoutError):
            while True:
                await asyncio.wait_for(self.remote.stats(), self._silence_seconds)
                await asyncio.sleep(self._silence_seconds / 4)

    async def _tell(self, process: asyncio.subprocess.Process, requests_address: str, replies_address: str) -> None:
        assert process.stdin is not None
        setup = protocol.Setup(__version__, self._models, self._config, requests_address, replies_address)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it ended already: `ended` tells
            process.stdin.write(msgspec.json.encode(setup) + b"\n")
            await process.stdin.drain()

    def _fail(self, error: VivaceError) -> None:
        self.failure = error
        self._set(State.FAILED)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def _set(self, state: State) -> None:
        self.state = state
        self._changed.set()
