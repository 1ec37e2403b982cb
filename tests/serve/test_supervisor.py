"""The keeper of the engine process: whatever becomes of it, requests get a clear error and service comes back."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.serve.server import TINY
from vivace.config import EngineConfig
from vivace.errors import ConfigError, EngineDied, VivaceError
from vivace.pipelines.requests import GenerateRequest, Reply
from vivace.serve import engine_process, protocol
from vivace.serve.supervisor import State, Supervisor

CONFIG = EngineConfig(kernels="ref", threads=1, kv_bytes=16 << 20)
WAIT_SECONDS = 60
LONG = GenerateRequest((70,), max_tokens=1000, ignore_eos=True)


@asynccontextmanager
async def supervised(silence_seconds: float = 30.0) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor({"tiny": str(TINY)}, CONFIG, silence_seconds=silence_seconds)
    keeper = asyncio.create_task(supervisor.run())
    try:
        await asyncio.wait_for(supervisor.wait_ready(), WAIT_SECONDS)
        yield supervisor
    finally:
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)
        supervisor.remote.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


async def _comes_back_after(supervisor: Supervisor, harm: Callable[[int], None]) -> list[Reply]:
    """Replies of a request in flight while the engine process is harmed; another process serves afterwards."""
    first = supervisor.pid
    assert first is not None
    replies: list[Reply] = []
    supervisor.remote.submit("tiny", LONG, replies.append)
    await until(lambda: bool(replies))
    harm(first)
    await until(lambda: replies[-1].finished is not None)
    await until(lambda: supervisor.state is State.READY and supervisor.pid not in (None, first))
    answer: list[Reply] = []
    supervisor.remote.submit("tiny", GenerateRequest((70,), max_tokens=2), answer.append)
    await until(lambda: bool(answer) and answer[-1].finished is not None)
    assert answer[-1].error is None
    return replies


@pytest.mark.parametrize("harm", ["kill", "stop", "nonsense"])
def test_an_engine_that_ends_is_silent_or_talks_nonsense_is_replaced(
    harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = protocol.decode_from_engine
    nonsense = iter([b"\xc1"])
    harms: dict[str, Callable[[int], None]] = {
        "kill": lambda pid: os.kill(pid, signal.SIGKILL),
        "stop": lambda pid: os.kill(pid, signal.SIGSTOP),
        "nonsense": lambda pid: monkeypatch.setattr(
            protocol, "decode_from_engine", lambda data: decode(next(nonsense, data))
        ),
    }

    async def run() -> list[Reply]:
        async with supervised(silence_seconds=2.0 if harm == "stop" else 30.0) as supervisor:
            return await _comes_back_after(supervisor, harms[harm])

    last = asyncio.run(run())[-1]
    assert last.finished == "error" and last.error is not None and last.error[0] == EngineDied.code


def test_an_engine_that_never_serves_is_not_started_for_ever() -> None:
    supervisor = Supervisor({"tiny": str(TINY)}, CONFIG)

    async def run() -> None:
        keeper = asyncio.create_task(supervisor.run())
        await until(lambda: supervisor.pid is not None)
        os.kill(supervisor.pid or 0, signal.SIGKILL)
        await asyncio.wait_for(keeper, WAIT_SECONDS)
        supervisor.remote.close()

    asyncio.run(run())
    assert isinstance(supervisor.failure, EngineDied) and "status -9" in supervisor.failure.message


def test_a_folder_that_is_no_place_for_sockets_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    supervisor = Supervisor({"tiny": str(TINY)}, CONFIG)

    async def run() -> VivaceError | None:
        await asyncio.wait_for(supervisor.run(), WAIT_SECONDS)
        supervisor.remote.close()
        return supervisor.failure

    failure = asyncio.run(run())
    assert isinstance(failure, ConfigError) and "TMPDIR" in failure.hint


def test_a_package_that_was_replaced_since_the_start_is_named() -> None:
    setup = protocol.Setup("0.0.0-old", {"tiny": str(TINY)}, CONFIG, "", "")
    with pytest.raises(ConfigError, match=r"version 0\.0\.0-old"):
        engine_process._load(setup, outbox=None)  # type: ignore[arg-type]
