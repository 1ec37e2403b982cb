"""What arrives on a connection: half requests, two lengths, no HTTP at all, and clients that keep us waiting."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn
from fastapi import HTTPException, Request

from tests.serve.conftest import CHAT
from tests.serve.server import Server
from vivace.serve.connection import Connection
from vivace.serve.limits import read_body

BODY = json.dumps({"model": CHAT, "prompt": "hi", "max_tokens": 1}).encode()
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
WAIT_SECONDS = 30.0


def _address(server: Server) -> tuple[str, int]:
    parts = urlsplit(server.url)
    return parts.hostname or "", parts.port or 0


def _send(address: tuple[str, int], data: bytes) -> bytes:
    """All that comes back until the server closes the connection."""
    with closing(socket.create_connection(address, timeout=WAIT_SECONDS)) as client:
        client.sendall(data)
        found = b""
        while part := client.recv(65536):
            found += part
        return found


def _error(reply: bytes) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(reply.partition(b"\r\n\r\n")[2])["error"]
    return error


def test_two_lengths_are_refused_and_what_follows_is_not_read(server: Server) -> None:
    hidden = b"GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"
    lengths = b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n" % len(BODY)
    reply = _send(_address(server), HEAD + lengths + CHUNKED + hidden)
    assert reply.startswith(b"HTTP/1.1 400 ") and b"hidden" not in reply
    assert _error(reply)["code"] == "invalid_http"


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",  # TLS
        b"GET / HTTP/1.1\r\n\r\n",  # no Host
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_http_gets_the_error_object(server: Server, data: bytes) -> None:
    assert _error(_send(_address(server), data))["code"] == "invalid_http"


def test_nonsense_after_an_answer_was_begun_ends_the_connection_without_a_fault(server: Server) -> None:
    head = HEAD.replace(b"application/json", b"text/plain") + b"Transfer-Encoding: chunked\r\n\r\n"
    with closing(socket.create_connection(_address(server), timeout=WAIT_SECONDS)) as client:
        client.sendall(head)
        assert client.recv(65536).startswith(b"HTTP/1.1 415 ")
        client.sendall(b"zz\r\n")
        while client.recv(65536):
            pass
    assert not any("Traceback" in line for line in server.lines)


def test_a_wish_for_another_protocol_is_left_unfulfilled(server: Server) -> None:
    upgrade = b"GET /health/live HTTP/1.1\r\nHost: x\r\nConnection: upgrade, close\r\nUpgrade: websocket\r\n\r\n"
    assert _send(_address(server), upgrade).startswith(b"HTTP/1.1 200 ")
    assert not any("pip install" in line for line in server.lines)


def test_a_path_with_a_slash_more_is_unknown_and_no_way_to_another_host(server: Server) -> None:
    data = b"POST /v1/completions/ HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    reply = _send(_address(server), data)
    assert reply.startswith(b"HTTP/1.1 404 ") and b"evil.example" not in reply


@pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/metrics", "/v1/models"])
def test_head_is_get_without_the_body(server: Server, path: str) -> None:
    reply = server.http.head(path)
    assert reply.status_code == 200 and reply.content == b"" and int(reply.headers["content-length"]) > 0
    assert server.http.head("/v1/completions").status_code == 405


class _Hasty(Connection):
    head_seconds = 0.2


@pytest.fixture
def hasty() -> Iterator[tuple[str, int]]:
    """A web server that answers every request at once, before its body, and waits for nobody."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        config = uvicorn.Config(answer, http=_Hasty, ws="none", lifespan="off", log_config=None, timeout_keep_alive=999)
        web = uvicorn.Server(config)
        thread = threading.Thread(target=lambda: asyncio.run(web.serve(sockets=[listener])))
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            web.should_exit = True
            thread.join()


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"", b""),
        (b"GET / HTTP/1.1\r\nHost:", b""),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HT", b"ok"),  # a whole request, then a half one
        (HEAD + b"Content-Length: 100\r\n\r\n{", b"ok"),  # the rest of an answered request never comes
    ],
)
def test_a_client_that_keeps_us_waiting_is_left(hasty: tuple[str, int], data: bytes, answer: bytes) -> None:
    assert _send(hasty, data).endswith(answer)


def test_a_body_that_does_not_come_is_408() -> None:
    async def stall() -> Any:
        await asyncio.Event().wait()

    request = Request({"type": "http", "headers": []}, receive=stall)
    with pytest.raises(HTTPException, match="no more of the body came") as caught:
        asyncio.run(read_body(request, max_bytes=100, pause_seconds=0.01))
    assert caught.value.status_code == 408
