"""Keeps one engine process alive: starts it, notices its end, and starts it again with growing pauses."""

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

from vivace.api.session import error_of
from vivace.config import EngineConfig
from vivace.errors import VivaceError
from vivace.serve import protocol
from vivace.serve.remote import RemoteEngine

log = logging.getLogger("vivace.serve")

FIRST_PAUSE = 0.5  # seconds before an engine is started again
LONGEST_PAUSE = 30.0
STEADY_SECONDS = 60.0  # an engine that ran so long starts the pauses over


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

    def __init__(self, models: Mapping[str, str], config: EngineConfig) -> None:
        """`models`: served name -> short name, hub id or path."""
        self.remote = RemoteEngine()
        self.state = State.STARTING
        self.failure: VivaceError | None = None
        self.restarts = 0
        self.pid: int | None = None
        self._models = dict(models)
        self._config = config
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
            await self._live_once()
            if self.failure is not None:
                return
            self._set(State.STARTING)
            if time.monotonic() - started > STEADY_SECONDS:
                pause = FIRST_PAUSE
            log.error("the engine process ended; starting it again in %.1f s", pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            self.restarts += 1

    async def _live_once(self) -> None:
        with tempfile.TemporaryDirectory(prefix="vivace-", ignore_cleanup_errors=True) as folder:
            addresses = f"ipc://{folder}/requests", f"ipc://{folder}/replies"
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "vivace.serve.engine_process", stdin=asyncio.subprocess.PIPE, env=dict(os.environ)
            )
            self.pid = process.pid
            attach = asyncio.create_task(self.remote.attach(*addresses))
            ended = asyncio.create_task(process.wait())
            try:
                await self._tell(process, *addresses)
                await asyncio.wait({attach, ended}, return_when=asyncio.FIRST_COMPLETED)
                if attach.done():
                    self._greet(attach.result())
                await ended
            finally:
                attach.cancel()
                await asyncio.gather(attach, return_exceptions=True)
                await self._end(process)
                await asyncio.gather(ended, return_exceptions=True)
                await self.remote.detach()
                self.pid = None

    async def _tell(self, process: asyncio.subprocess.Process, requests_address: str, replies_address: str) -> None:
        assert process.stdin is not None
        setup = protocol.Setup(self._models, self._config, requests_address, replies_address)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it ended already: `ended` tells
            process.stdin.write(msgspec.json.encode(setup) + b"\n")
            await process.stdin.drain()

    def _greet(self, first: protocol.Ready | protocol.Failed) -> None:
        if isinstance(first, protocol.Failed):
            self.failure = error_of(*first.error)
            self._set(State.FAILED)
        else:
            self._set(State.READY)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def _set(self, state: State) -> None:
        self.state = state
        self._changed.set()
