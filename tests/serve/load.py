"""A load generator in a process of its own: streaming chat requests over plain sockets, with next to no work per event.

It takes one round per line of its standard input, a JSON list of bodies, sends all of them at once on connections of
their own, and prints one line: seconds from the first byte sent to the last answer's end, its own processor seconds,
the tokens that the usages count, and the events that came.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from typing import Any
from urllib.parse import urlsplit

END = b"data: [DONE]\n\n"
_TOKENS = re.compile(rb'"completion_tokens":(\d+)')


class Stream(asyncio.Protocol):
    """One connection: keeps what comes until the end of the stream has come."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.parts.append(data)
        # The end stands in the last parts, whole or cut between two.
        if (END in data or END in b"".join(self.parts[-3:])) and not self.over.done():
            self.over.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.over.done():
            self.over.set_exception(ConnectionError(f"the answer ended early: {b''.join(self.parts)[-500:]!r}"))


async def round_of(address: tuple[str, int], bodies: list[Any]) -> dict[str, float]:
    """Send all bodies, wait for all answers."""
    loop = asyncio.get_running_loop()
    pairs = [await loop.create_connection(Stream, *address) for _ in bodies]
    requests = [_request(address[0], body) for body in bodies]
    began, cpu = time.perf_counter(), time.process_time()
    for (transport, _), request in zip(pairs, requests, strict=True):
        transport.write(request)
    await asyncio.gather(*(stream.over for _, stream in pairs))
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    answers = [b"".join(stream.parts) for _, stream in pairs]
    for transport, _ in pairs:
        transport.close()
    tokens = sum(int(found[-1]) for answer in answers if (found := _TOKENS.findall(answer)))
    return {"seconds": seconds, "cpu": cpu, "tokens": tokens, "events": sum(a.count(b"data: ") for a in answers)}


def _request(host: str, body: Any) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def main() -> None:
    url = urlsplit(sys.argv[1])
    assert url.hostname and url.port
    for line in sys.stdin:
        print(json.dumps(asyncio.run(round_of((url.hostname, url.port), json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
