"""How a peer's worker speaks with `benchmarks.peers`: one JSON object a line, on standard input and output.

The worker loads its model, says what it is ({"ready": {...}}), then does one measurement per line that comes and
answers with {"tokens_per_s": ...}. What libraries print goes to standard error. Only the standard library is used,
because each peer runs in an environment of its own.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

Ids = list[int]
Work = dict[str, int]  # streams, context (tokens of each prompt), tokens (of each answer; 0: time the prompt itself)
FIRST_ID, LAST_ID = 200, 40_000  # plain tokens of any vocabulary that is measured


class Requests(Protocol):
    """A batch of requests in the worker's engine."""

    def step(self) -> None:
        """Compute one step."""

    def counts(self) -> Sequence[int]:
        """Tokens that each request's answer has."""


Start = Callable[[list[Ids], int], Requests]  # prompts, tokens of each answer -> the running requests


def serve(about: dict[str, Any], measure: Callable[[Work], dict[str, float]]) -> None:
    """Answer measurements until standard input ends. Call `take_stdout` before anything is loaded."""
    _say({"ready": about})
    for line in sys.stdin:
        work = json.loads(line)
        try:
            _say(measure(work))
        except Exception as error:
            _say({"error": f"{type(error).__name__}: {error}"})


def take_stdout() -> None:
    """Keep standard output for the answers: whatever else writes to it reaches standard error."""
    global _answers
    _answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)


def measured_by(start: Start) -> Callable[[Work], dict[str, float]]:
    """What `serve` wants, for an engine whose steps the worker takes."""
    return lambda work: {"tokens_per_s": rate_of(work, start)}


def rate_of(work: Work, start: Start) -> float:
    """Tokens per second of one prompt that is read, or of streams that decode together.

    A prompt counts from its request to the first token. Streams count from the step that gave the last one its first
    token on, over `tokens` tokens of it.
    """
    prompts = [make_prompt(work["context"]) for _ in range(work["streams"])]
    if not work["tokens"]:
        began = time.perf_counter()
        _run_until(start(prompts, 1), 1)
        return work["context"] * work["streams"] / (time.perf_counter() - began)
    spare = 8 + work["streams"] * work["context"] // 128  # early streams go on while later prompts are read
    requests = start(prompts, work["tokens"] + spare)
    _run_until(requests, 1)
    before, began = sum(requests.counts()), time.perf_counter()
    _run_until(requests, min(requests.counts()) + work["tokens"])
    rate = (sum(requests.counts()) - before) / (time.perf_counter() - began)
    _run_until(requests, work["tokens"] + spare)
    return rate


def make_prompt(length: int) -> Ids:
    """Random ids, so that no prefix is shared."""
    return random.choices(range(FIRST_ID, LAST_ID), k=length)


def _run_until(requests: Requests, tokens: int) -> None:
    while min(requests.counts()) < tokens:
        requests.step()


_answers = sys.stdout


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), file=_answers, flush=True)
