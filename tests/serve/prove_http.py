"""Over HTTP with 16 streaming clients: at least 85% of what the engine itself reaches on the same work in one run.

Both do the same chats, greedy, to the full length, in turn: the engine in this process, and a server whose clients are
a process of their own. Full size: smollm2. Small size: a tiny model, whose steps are too short for the claim.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import threading
import time
from typing import Any

import psutil

from tests.proof import ROOT, Proof
from tests.serve.server import TINY, Server, serving
from vivace.api.engine import Engine
from vivace.config import EngineConfig
from vivace.pipelines.requests import GenerateRequest, Reply

CLIENTS = 16
LEAST = 0.85
WORDS = ("the", "a", "red", "blue", "fox", "cat", "house", "garden", "river", "tree", "walked", "saw", "found", "asked")


class Chats:
    """Conversations that no earlier one shares a beginning with."""

    def __init__(self, words: int) -> None:
        self._random = random.Random(0)
        self._words = words

    def make(self) -> list[list[dict[str, str]]]:
        texts = [" ".join(self._random.choices(WORDS, k=self._words)) for _ in range(CLIENTS)]
        return [[{"role": "user", "content": text}] for text in texts]


def over_http(client: subprocess.Popen[str], model: str, chats: list[Any], tokens: int) -> dict[str, float]:
    """One round of the load generator."""
    options = {"model": model, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    bodies = [{**options, "messages": chat, "stream_options": {"include_usage": True}} for chat in chats]
    assert client.stdin is not None and client.stdout is not None
    client.stdin.write(json.dumps(bodies) + "\n")
    client.stdin.flush()
    found: dict[str, float] = json.loads(client.stdout.readline())
    return found


def by_engine(engine: Engine, model: str, prompts: list[list[int]], tokens: int) -> dict[str, float]:
    """The same requests, given to the engine at once."""
    count, left, over = 0, len(prompts), threading.Event()

    def take(reply: Reply) -> None:
        nonlocal count, left
        assert reply.error is None, reply.error
        if reply.finished is not None:
            count += reply.usage.generated
            left -= 1
            if not left:
                over.set()

    began, cpu = time.perf_counter(), time.process_time()
    for ids in prompts:
        engine.submit(model, GenerateRequest(tuple(ids), max_tokens=tokens, ignore_eos=True), take)
    assert over.wait(300), "the engine did not answer"
    return {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu, "tokens": count}


def processes(server: Server) -> list[psutil.Process]:
    """The HTTP process and its engine process."""
    http = psutil.Process(server.process.pid)
    return [http, *http.children()]


def cpu_of(processes: list[psutil.Process]) -> list[float]:
    return [sum(process.cpu_times()[:2]) for process in processes]


def main() -> None:
    with Proof("http", __doc__) as proof:
        model, words, tokens, pairs = ("smollm2", 90, 128, 7) if proof.is_full else (str(TINY), 8, 24, 2)
        settings: dict[str, Any] = {"kernels": "auto", "threads": None, "kv_bytes": 512 << 20}
        with Engine(EngineConfig(**settings)) as engine, serving([model], engine=settings) as server:
            name = engine.add_model(model).name
            command = [sys.executable, "-m", "tests.serve.load", server.url]
            client = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            with client:
                compare(proof, engine, server, client, name, (words, tokens, pairs))


def compare(
    proof: Proof, engine: Engine, server: Server, client: subprocess.Popen[str], name: str, sizes: tuple[int, int, int]
) -> None:
    words, tokens, pairs = sizes
    chats, text, both = Chats(words), engine.texts[name], processes(server)
    cores, ratios, wanted = psutil.cpu_count() or 1, [], CLIENTS * tokens
    proof.say(f"{CLIENTS} clients, {tokens} tokens each, {cores} cores; a pair: engine, HTTP, ratio; processor seconds")
    for pair in range(-1, pairs):  # the first one warms up
        work = chats.make()
        prompts = [text.chat_ids(chat) for chat in work]
        alone = by_engine(engine, name, prompts, tokens)
        before = cpu_of(both)
        served = over_http(client, name, work, tokens)
        used = [after - start for after, start in zip(cpu_of(both), before, strict=True)]
        assert alone["tokens"] == served["tokens"] == wanted, (alone, served)
        if pair < 0:
            continue
        ratios.append(alone["seconds"] / served["seconds"])
        proof.say(
            f"  {wanted / alone['seconds']:7.0f} {wanted / served['seconds']:7.0f} tokens/s  {ratios[-1]:.3f}   "
            f"alone {alone['cpu']:.2f}; engine {used[1]:.2f} HTTP {used[0]:.2f} clients {served['cpu']:.2f} of "
            f"{cores * served['seconds']:.2f} ({served['cpu'] / served['seconds'] / cores:.1%} the load generator), "
            f"{used[0] / served['events'] * 1e6:.0f} us HTTP an event"
        )
    ratio = statistics.median(ratios)
    proof.say(f"median ratio {ratio:.3f} of {pairs} pairs, from {min(ratios):.3f} to {max(ratios):.3f}")
    proof.demand(True, f"all {wanted} tokens of each round came, as many as from the engine")
    if proof.is_full:
        proof.demand(ratio >= LEAST, f"over HTTP at least {LEAST:.0%} of the engine's own tokens a second")


if __name__ == "__main__":
    main()
