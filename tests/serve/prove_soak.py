"""32 streaming clients with random cancels and bad requests: no error that was not asked for, nothing left, no growth.

Small size: 10 seconds. Full size: a minute; the resident memory of both processes must grow by less than 1 MB a minute
after the first 15 seconds. Twice as many clients come first for some seconds, so that the highest tide of the
allocators lies behind when the minute begins; what grows with each request shows all the same.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import openai
import psutil

from tests.proof import Proof
from tests.serve.server import TINY, Server, serving

CLIENTS = 32
HIGH_TIDE_CLIENTS = 64
HIGH_TIDE_SECONDS = {"small": 2.0, "full": 10.0}
SECONDS = {"small": 10.0, "full": 60.0}
WARM_SECONDS = 15.0
MOST_GROWTH = 1.0  # MB a minute
SETTLE_SECONDS = 30.0
MODEL = "tiny-llama"
WORDS = ("One day", "the bear", "found a book", "The cat", "What is", "the capital", "of France?", "in the sun")
BAD: tuple[dict[str, Any], ...] = (
    {"temperature": 9},
    {"max_tokens": 10**6},
    {"logit_bias": {"99999": 1}},
    {"n": 0},
    {"stop": [""]},
    {"extra_body": {"nonsense": 1}},
    {"prompt": [5000]},
    {"prompt": ""},
)


@dataclass
class Tally:
    """What happened."""

    events: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    memory: list[tuple[float, list[float]]] = field(default_factory=list)  # (seconds, MB of HTTP and engine process)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, help="instead of what the size says")
    parser.add_argument("--kernels", default="auto", help="implementation of the operations")
    with Proof("soak", __doc__, arguments=parser) as proof:
        seconds = proof.options.seconds or SECONDS[proof.options.size]
        # Few pages and few jobs in a step, so that evictions, preemptions and waiting happen too.
        engine = {"kv_bytes": 5 << 18, "max_jobs": 16, "kernels": proof.options.kernels}
        with serving([TINY], engine=engine) as server:
            asyncio.run(soak(server, HIGH_TIDE_SECONDS[proof.options.size], HIGH_TIDE_CLIENTS))
            tally = asyncio.run(soak(server, seconds, CLIENTS))
            report(proof, server, tally, seconds)


async def soak(server: Server, seconds: float, clients: int) -> Tally:
    """Run so many clients for so long."""
    tally = Tally()
    end = time.monotonic() + seconds
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        watch = asyncio.create_task(_watch_memory(server, tally, end))
        await asyncio.gather(*(_client(client, random.Random(seed), tally, end) for seed in range(clients)))
        await watch
    return tally


def report(proof: Proof, server: Server, tally: Tally, seconds: float) -> None:
    """Print what happened and check the claims."""
    settled = time.monotonic() + SETTLE_SECONDS
    while server.jobs() and time.monotonic() < settled:
        time.sleep(0.05)
    gauges = server.gauges()
    counters = ("jobs_finished", "jobs_cancelled", "jobs_failed", "preemptions", "cached_units", "steps")
    proof.say(f"  {seconds:g} s: " + ", ".join(f"{count} {name}" for name, count in sorted(tally.events.items())))
    values = {name: gauges[f'vivace_engine{{counter="{name}"}}'] for name in counters}
    proof.say("  engine: " + ", ".join(f"{value:.0f} {name}" for name, value in values.items()))
    for fault in tally.faults[:10]:
        proof.say(f"  not asked for: {fault}")
    for name in ("finished", "cancelled", "refused"):
        proof.demand(tally.events[name] >= CLIENTS, f"at least {CLIENTS} requests were {name}")
    proof.demand(not tally.faults, "no error that was not asked for")
    complaints = [line for line in server.lines if line.startswith(("WARNING", "ERROR"))]
    proof.demand(not complaints, f"the server logs no warning and no error ({len(complaints)})")
    for line in complaints[:5]:
        proof.say(f"  {line}")
    proof.demand(server.jobs() == 0, "no job is left")
    proof.demand(server.taken_pages() == 0, "all pages are free or idle in the prefix cache")
    late = [(at, sizes) for at, sizes in tally.memory if at >= min(WARM_SECONDS, seconds / 2)]
    times = [at for at, _ in late]
    slopes = [float(np.polyfit(times, [sizes[place] for _, sizes in late], 1)[0]) * 60 for place in range(2)]
    (http_first, engine_first), (http_last, engine_last), slope = late[0][1], late[-1][1], sum(slopes)
    proof.say(f"  resident memory, HTTP process {http_first:.1f} -> {http_last:.1f} MB, {slopes[0]:+.2f} MB a minute")
    proof.say(
        f"  resident memory, engine process {engine_first:.1f} -> {engine_last:.1f} MB, {slopes[1]:+.2f} MB a minute"
    )
    if seconds > 2 * WARM_SECONDS:
        proof.demand(slope < MOST_GROWTH, f"resident memory grows by less than {MOST_GROWTH:g} MB a minute")


async def _client(client: openai.AsyncOpenAI, choose: random.Random, tally: Tally, end: float) -> None:
    while time.monotonic() < end:
        kind = choose.choices(("finished", "cancelled", "refused"), (6, 3, 1))[0]
        try:
            await {"finished": _finish, "cancelled": _cancel, "refused": _refuse}[kind](client, choose)
            tally.events[kind] += 1
        except (openai.APIError, httpx.HTTPError, AssertionError) as error:
            tally.faults.append(f"{kind}: {type(error).__name__}: {error}")


async def _finish(client: openai.AsyncOpenAI, choose: random.Random) -> None:
    """An answer to its end; its usage must fit what came."""
    body = {**_body(choose), "n": choose.choice((1, 1, 2)), "stream_options": {"include_usage": True}}
    ends, last = 0, None
    async for chunk in await client.completions.create(**body):
        ends += sum(choice.finish_reason is not None for choice in chunk.choices)
        last = chunk
    assert ends == body["n"], f"{ends} ends of {body['n']} choices"
    assert last is not None and last.usage is not None, "the stream ended without usage"


async def _cancel(client: openai.AsyncOpenAI, choose: random.Random) -> None:
    """Leave after some chunks, or before the first."""
    left = choose.randrange(6)
    if left == 0:
        task = asyncio.create_task(client.completions.create(**_body(choose)))
        await asyncio.sleep(choose.random() * 0.02)
        task.cancel()
        (found,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(found, openai.AsyncStream):
            await found.close()
        return
    async with await client.completions.create(**{**_body(choose), "max_tokens": 200}) as stream:
        async for _ in stream:
            left -= 1
            if left <= 0:
                return


async def _refuse(client: openai.AsyncOpenAI, choose: random.Random) -> None:
    """A bad request must be refused as such."""
    change = choose.choice(BAD)
    try:
        await client.completions.create(**{**_body(choose), **change})
    except openai.BadRequestError:
        return
    raise AssertionError(f"{change} was accepted")


def _body(choose: random.Random) -> dict[str, Any]:
    return {
        "model": MODEL,
        "prompt": " ".join(choose.choices(WORDS, k=choose.randint(1, 30))),
        "max_tokens": choose.randint(1, 60),
        "temperature": choose.choice((0, 0.7, 1.3)),
        "stop": choose.choice((None, "ook", [" the", "zzz"])),
        "stream": True,
    }


async def _watch_memory(server: Server, tally: Tally, end: float) -> None:
    start = time.monotonic()
    parent = psutil.Process(server.process.pid)
    processes = [parent, *parent.children()]
    assert len(processes) == 2, "one HTTP process, one engine process"
    while time.monotonic() < end:
        sizes = [process.memory_info().rss / 1e6 for process in processes]
        tally.memory.append((time.monotonic() - start, sizes))
        await asyncio.sleep(0.5)


if __name__ == "__main__":
    main()
