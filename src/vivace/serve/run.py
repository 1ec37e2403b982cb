"""`vivace serve`: the HTTP process from start to end, with its engine process beside it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import json
import logging
import signal
import socket
import sys
from collections.abc import Generator, Mapping, Sequence

import uvicorn

from vivace.api.info import ModelInfo
from vivace.api.text import TextSide, load_text
from vivace.config import ServeConfig, check_serve
from vivace.errors import ConfigError
from vivace.serve.app import make_app
from vivace.serve.connection import Connection
from vivace.serve.hub import Hub
from vivace.serve.process import freeze_loaded, keep_trimming, log_to_stderr
from vivace.serve.supervisor import State, Supervisor
from vivace.weights.catalog import resolve
from vivace.weights.progress import Progress

log = logging.getLogger("vivace.serve")


def run(models: Sequence[str], config: ServeConfig, *, progress: Progress | None = None) -> None:
    """Serve `models` until SIGTERM or SIGINT; prints the address and an example once requests are served.

    The first signal drains: readiness turns to 503, requests in flight finish within `config.drain_seconds`, new ones
    get 503. A second one ends at once. Raises ConfigError, ModelError or UnknownModel if the models cannot be served.
    """
    log_to_stderr()
    check_serve(config)
    sources = _sources(models, progress)
    texts = {name: load_text(resolve(source).path) for name, source in sources.items()}
    listener = _listen(config)
    with contextlib.closing(listener):
        warning = public_bind_warning(config)
        if warning:
            print(warning, file=sys.stderr, flush=True)
        asyncio.run(_Server(sources, texts, config, listener).main())


def public_bind_warning(config: ServeConfig) -> str | None:
    """What to say if everybody who can reach this machine may use the server."""
    if config.api_key is not None or _is_loopback(config.host):
        return None
    return (
        f"warning: {config.host} can be reached from other machines and no key is set: anyone may use this server\n"
        "hint: set VIVACE_API_KEY or --api-key, or serve on 127.0.0.1"
    )


class _Server:
    """One run of the server."""

    def __init__(
        self, sources: Mapping[str, str], texts: Mapping[str, TextSide], config: ServeConfig, listener: socket.socket
    ) -> None:
        self._config = config
        self._listener = listener
        self._supervisor = Supervisor(sources, config.engine)
        remote = self._supervisor.remote
        self._hub = Hub(config, remote, texts, remote.stats, lambda: self._supervisor.state is State.READY)
        web = uvicorn.Config(
            make_app(self._hub),
            http=Connection,
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,
            lifespan="off",
        )
        self._web = _Uvicorn(web)
        self._signals = 0
        self._end: asyncio.Task[None] | None = None

    async def main(self) -> None:
        """Run until a signal has ended the server, or raise the error for which the engine does not start."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        keeper = asyncio.create_task(self._supervisor.run())
        web = asyncio.create_task(self._web.serve(sockets=[self._listener]))
        announce = asyncio.create_task(self._announce())
        try:
            await asyncio.wait({web, keeper}, return_when=asyncio.FIRST_COMPLETED)
            if self._supervisor.failure is not None:
                raise self._supervisor.failure
            if keeper.done():
                keeper.result()  # a fault of ours
            await web
        finally:
            self._web.should_exit = True
            for task in (announce, keeper):
                task.cancel()
            await asyncio.gather(web, announce, keeper, return_exceptions=True)
            self._supervisor.remote.close()

    async def _announce(self) -> None:
        await self._supervisor.wait_ready()
        freeze_loaded()
        keep_trimming()
        print(announcement(self._address(), self._supervisor.remote.models, self._hub.texts), flush=True)

    def _address(self) -> str:
        host, port = self._listener.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def _on_signal(self) -> None:
        self._signals += 1
        self._hub.is_draining = True
        if self._signals > 1:
            log.warning("ending at once")
            self._web.force_exit = True
            self._web.should_exit = True
        elif self._end is None:
            self._end = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        log.info("draining: %d requests in flight", self._hub.in_flight)
        try:
            await asyncio.wait_for(self._hub.wait_idle(), self._config.drain_seconds)
        except TimeoutError:
            log.warning("%d requests did not end within %g s", self._hub.in_flight, self._config.drain_seconds)
        self._web.should_exit = True


class _Uvicorn(uvicorn.Server):
    """uvicorn closes its sockets at the first signal; ours stay open while the server drains."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def announcement(address: str, models: Mapping[str, ModelInfo], texts: Mapping[str, TextSide]) -> str:
    """What is printed once requests are served: the address, and a request that the first model can answer."""
    name, info = next(iter(models.items()))
    body: dict[str, object] = {"model": name}
    if info.kind == "embed":
        path, body["input"] = "/v1/embeddings", "Hello"
    elif texts[name].template is None:
        path, body["prompt"] = "/v1/completions", "Once upon a time"
    else:
        path, body["messages"] = "/v1/chat/completions", [{"role": "user", "content": "Hello"}]
    return (
        f"serving {', '.join(models)} at {address} (docs: {address}/docs)\n"
        f"try: curl {address}{path} -H 'Content-Type: application/json' -d '{json.dumps(body)}'"
    )


def _sources(models: Sequence[str], progress: Progress | None) -> dict[str, str]:
    """Served name -> where the model is: a path is served under the name of its folder or file."""
    found: dict[str, str] = {}
    for source in models:
        files = resolve(source, progress=progress)
        name = files.name if files.origin.startswith("local ") else source
        if name in found:
            raise ConfigError(f"two models are named '{name}': {found[name]} and {source}", hint="rename one of them")
        found[name] = source
    if not found:
        raise ConfigError("no model to serve", hint="name one, such as smollm2")
    return found


def _listen(config: ServeConfig) -> socket.socket:
    try:
        family = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((config.host, config.port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {config.host}:{config.port}: {error.strerror or error}", hint=_listen_hint(error)
        ) from error


def _listen_hint(error: OSError) -> str:
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return "--host takes an address of this machine: 127.0.0.1, or 0.0.0.0 for all of them"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "choose a --port of 1024 or more"
    return "choose another --port, or end the program that uses this one"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
