"""The kinds of work that are measured: prompts, decoding streams, both at once, and the wait for the first token.

Each function does its work once, through the engine as any client would, with prompts that nothing of was seen before,
and returns readings by name. The ending of a name is its unit: _per_s is better when it is more, all others when less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from vivace.api.engine import Engine
from vivace.config import EngineConfig
from vivace.engine.stats import Histogram
from vivace.errors import ConfigError, EngineError
from vivace.lab.settings import BenchConfig
from vivace.lab.streams import Prompts, Stream, Streams, quantile, window_between

Readings = dict[str, float]


@dataclass(frozen=True)
class Bench:
    """An engine with one model, and what is measured on it."""

    engine: Engine
    model: str
    config: BenchConfig
    prompts: Prompts

    def prompt(self, length: int) -> tuple[int, ...]:
        """A prompt that shares nothing with any before it."""
        return self.prompts.make(length)


@dataclass(frozen=True)
class Work:
    """One kind of work. `streams` and `rows` are those of its typical step, `context` the units before each row."""

    name: str
    run: Callable[[Bench], Readings]
    streams: int
    rows: int
    context: float


def works_of(config: BenchConfig) -> list[Work]:
    """All works of a configuration, in the order in which they are done."""
    works = [Work(f"prefill {n}", partial(prefill, length=n), 1, n, (n - 1) / 2) for n in config.prefill]
    middle = config.context + config.tokens / 2
    works += [Work(f"decode {n}", partial(decode, streams=n), n, n, middle) for n in config.streams]
    if config.running and config.arrivals:
        works.append(Work(f"mixed {config.running}", mixed, config.running, 0, middle))
    return works


def check(config: BenchConfig, engine: EngineConfig, context_length: int) -> None:
    """Raises ConfigError for work that the model or the engine cannot take."""
    for name in ("prefill", "streams", "context", "tokens", "repeats"):
        value = getattr(config, name)
        numbers = value if isinstance(value, tuple) else (value,)
        if not numbers or min(numbers) < 1:
            raise ConfigError(f"{name} is {value}, expected positive numbers", hint=f"leave {name} out")
    most = max(*config.streams, config.running)
    if most > engine.max_jobs:
        raise ConfigError(f"{most} streams, but the engine runs {engine.max_jobs}", hint=f"add --max-jobs {most}")
    longest = max(max(config.prefill) + 1, config.context + _answer_length(config, engine, most))
    if longest > context_length:
        message = f"the work takes {longest} tokens of context, the model has {context_length}"
        raise ConfigError(message, hint="lower --prefill, --context, --tokens or --streams")


def prefill(bench: Bench, length: int) -> Readings:
    """A new prompt, then the same one again: what it costs to read, and the wait for the first token when cached."""
    with Streams(bench.engine, bench.model) as streams:
        prompt = bench.prompt(length)
        cold, warm = (_first_token(streams, prompt) for _ in range(2))
    return {
        "tokens_per_s": length / cold.first_token_ms * 1e3,
        "first_token_cold_ms": cold.first_token_ms,
        "first_token_warm_ms": warm.first_token_ms,
    }


def decode(bench: Bench, streams: int) -> Readings:
    """Streams that decode together, from the last one's first token on, and what the scheduler takes of each step."""
    config = bench.config
    with Streams(bench.engine, bench.model) as running, recorded_plans(bench.engine) as plans:
        prompts = [bench.prompt(config.context) for _ in range(streams)]
        started = running.start(prompts, _answer_length(config, bench.engine.config, streams))
        window = running.window(started, config.tokens)
    if window.tokens < streams * config.tokens:
        raise EngineError(
            f"{streams} streams were not decoding together: {window.tokens} tokens came, not {streams * config.tokens}",
            hint="give the KV pages more memory with --kv-bytes, or fewer streams",
        )
    return {
        "tokens_per_s": window.rate,
        "gap_p50_ms": quantile(window.gaps_ms, 0.5),
        "gap_p99_ms": quantile(window.gaps_ms, 0.99),
        "scheduler_p50_us": quantile(plans, 0.5) / 1e3,
        "scheduler_p99_us": quantile(plans, 0.99) / 1e3,
    }


def mixed(bench: Bench) -> Readings:
    """Prompts arrive one by one while streams decode: what the streams notice of it, and how fast prompts are read."""
    config, length = bench.config, bench.config.prefill[0]
    with Streams(bench.engine, bench.model) as streams:
        longest = bench.engine.models[bench.model].context_length - config.context
        prompts = [bench.prompt(config.context) for _ in range(config.running)]
        running = streams.start(prompts, min(longest, 1024))
        streams.wait(running, 2)
        arrived = [_first_token(streams, bench.prompt(length)) for _ in range(config.arrivals)]
        window = window_between(running, arrived[0].submitted_ns, arrived[-1].token_ns[0])
        is_over = any(stream.is_over for stream in running)
    if is_over:
        raise EngineError("the streams ended before the last prompt was read", hint="use fewer or shorter prompts")
    return {
        "prompt_tokens_per_s": config.arrivals * length / window.seconds,
        "tokens_per_s": window.rate,
        "gap_p50_ms": quantile(window.gaps_ms, 0.5),
        "gap_p99_ms": quantile(window.gaps_ms, 0.99),
        "first_token_ms": quantile([stream.first_token_ms for stream in arrived], 0.5),
    }


@contextmanager
def recorded_plans(engine: Engine) -> Iterator[list[int]]:
    """Nanoseconds that the scheduler took for each step of the block; its own statistics keep powers of two only."""
    stats: Any = engine.loop.scheduler.stats
    before, stats.plan_ns = stats.plan_ns, _Recorder()
    try:
        yield stats.plan_ns.values
    finally:
        stats.plan_ns = before


class _Recorder(Histogram):
    __slots__ = ("values",)

    def __init__(self) -> None:
        super().__init__()
        self.values: list[int] = []

    def add(self, value: int) -> None:
        self.values.append(value)


def _first_token(streams: Streams, prompt: tuple[int, ...]) -> Stream:
    [stream] = streams.start([prompt], 1)
    streams.wait([stream], 1)
    return stream


def _answer_length(config: BenchConfig, engine: EngineConfig, streams: int) -> int:
    """Tokens of an answer: those that are measured, and those that come while the prompts of later streams are read.

    Running streams may take the larger part of a step, so that prompts get an eighth of it.
    """
    steps = -(-8 * streams * config.context // engine.step_budget)
    return config.tokens + 8 + (steps if streams > 1 else 0)
