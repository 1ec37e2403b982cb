"""A real server in a process of its own on a free loopback port, as `vivace serve` runs it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import httpx
import openai

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "tests" / "assets" / "tiny-llama"
START_SECONDS = 90

# The engine is kept small: one thread and a few megabytes of pages are plenty for the tiny models.
_PROGRAM = """
import sys
from vivace.config import EngineConfig, ServeConfig
from vivace.serve.run import run

settings = eval(sys.argv[1], {"__builtins__": {}})
engine = EngineConfig(**{"kernels": "ref", "threads": 1, "kv_bytes": 16 << 20, **settings.pop("engine", {})})
run(sys.argv[2:], ServeConfig(**{"port": 0, **settings}, engine=engine))
"""


@dataclass
class Server:
    """A running server. `lines` grows with what it prints to both outputs."""

    process: subprocess.Popen[str]
    url: str = ""
    lines: list[str] = field(default_factory=list)
    _closing: ExitStack = field(default_factory=ExitStack)

    def client(self, key: str = "none") -> openai.OpenAI:
        """The official client, without its own retries, which would hide errors; closed with the server."""
        client = openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=60)
        self._closing.callback(client.close)
        return client

    @cached_property
    def http(self) -> httpx.Client:
        """A plain client, closed with the server."""
        return self._closing.enter_context(httpx.Client(base_url=self.url, timeout=60))

    def post(self, path: str, body: object) -> httpx.Response:
        """Send JSON."""
        return self.http.post(path, json=body)

    def close(self) -> None:
        """Close the clients."""
        self._closing.close()

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Send the server a signal."""
        self.process.send_signal(number)

    def gauges(self) -> dict[str, float]:
        """All values of /metrics by their name with labels."""
        page = self.http.get("/metrics").text
        lines = (line.rpartition(" ") for line in page.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in lines}

    def jobs(self) -> float:
        """Jobs that run or wait in the engine."""
        return sum(value for name, value in self.gauges().items() if name.startswith("vivace_engine_jobs{"))

    def taken_pages(self) -> float:
        """Pages that are neither free nor idle in the prefix tree."""
        pages = {name: value for name, value in self.gauges().items() if name.startswith("vivace_engine_pages{")}
        return sum(value if 'state="total"' in name else -value for name, value in pages.items())


@contextmanager
def serving(models: Sequence[Path | str], **settings: object) -> Iterator[Server]:
    """Start a server with fields of ServeConfig (and `engine`: fields of EngineConfig); it is ended with the block."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, repr(settings), *map(str, models)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    server = Server(process)
    is_ready = threading.Event()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            server.lines.append(line.rstrip("\n"))
            found = re.search(r" at (http://\S+) ", line)
            if found:
                server.url = found.group(1)
                is_ready.set()
        is_ready.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        is_ready.wait(START_SECONDS)
        assert server.url, "the server did not start:\n" + "\n".join(server.lines)
        yield server
    finally:
        server.close()
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        reader.join(10)
        assert process.stdout is not None
        process.stdout.close()
