"""Decode time per token against context: the slope is explained by the bytes of keys and values that attention reads.

One stream per format of the pages; a least-squares line through the times; its slope beside the bytes that one more
unit of context adds, divided by the read bandwidth that was measured in the same run. Then 64 streams: the scheduler's
own time per step.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from typing import get_args

from tests.proof import ROOT, Proof
from vivace.api.engine import Engine
from vivace.config import EngineConfig, KVFormat
from vivace.engine.stats import Histogram
from vivace.lab.ceilings import measure_ceilings
from vivace.lab.streams import Prompts, Streams, quantile
from vivace.pipelines.generate import GeneratePipeline

TINY = ROOT / "tests" / "assets" / "tiny-llama"
STREAMS = 64


class EveryTime(Histogram):
    """A histogram that keeps the values."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        super().__init__()
        self.values: list[int] = []

    def add(self, value: int) -> None:
        super().add(value)
        self.values.append(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2", help="of the full size")
    with Proof("context", __doc__, arguments=parser) as proof:
        model = proof.options.model if proof.is_full else str(TINY)
        proof.say(f"model {model}")
        prove_slopes(proof, model)
        prove_scheduler(proof, model)


def prove_slopes(proof: Proof, model: str) -> None:
    """The line of each format, beside what the bandwidth says."""
    contexts = [128 << step for step in range(7)] if proof.is_full else [64, 128, 256, 512, 900]
    tokens, repeats = (24, 3) if proof.is_full else (8, 1)
    ceilings = measure_ceilings(EngineConfig().threads or 2, 0.3 if proof.is_full else 0.05)
    proof.say(ceilings.describe())
    for kv_format in get_args(KVFormat):
        if kv_format == "bf16":
            continue  # the bytes of f16
        # What stands in the pages of a shorter context is the beginning of the next.
        with Engine(EngineConfig(kv_format=kv_format, kv_bytes=1 << 30 if proof.is_full else 32 << 20)) as engine:
            info = engine.add_model(model, name="model")
            pipeline = engine.pipelines["model"]
            assert isinstance(pipeline, GeneratePipeline)
            unit_bytes = sum(group.unit_bytes for group in pipeline.lane.groups)
            prompt = Prompts(info.vocab_size).make(contexts[-1])
            times = [
                min(_token_ms(engine, prompt[: context - tokens - 1], tokens) for _ in range(repeats))
                for context in contexts
            ]
        base, slope = fitted_line(contexts, times)
        expected = unit_bytes / ceilings.read_bytes_per_s * 1e6
        proof.say(f"pages {kv_format}, {unit_bytes} bytes a unit: ms a token by context")
        proof.say("  " + "  ".join(f"{context}: {ms:.2f}" for context, ms in zip(contexts, times, strict=True)))
        proof.say(
            f"  line: {base:.2f} ms + {slope * 1e3:.3f} us a unit; bytes / bandwidth: {expected:.3f} us, "
            f"{expected / (slope * 1e3):.0%} of the slope"
        )
        if proof.is_full:
            misses = [abs(base + slope * c - ms) / ms for c, ms in zip(contexts, times, strict=True)]
            proof.demand(max(misses) < 0.15, f"{kv_format}: every time is within {max(misses):.0%} of the line")
            share = expected / (slope * 1e3)
            # Bytes are also turned into floats, which takes about as long as reading them.
            proof.demand(
                (0.4 if kv_format == "i8" else 0.6) < share < 1.5,
                f"{kv_format}: the bytes explain {share:.0%} of the slope",
            )


def prove_scheduler(proof: Proof, model: str) -> None:
    """Planning and accepting at 64 streams."""
    tokens = 64 if proof.is_full else 16
    with Engine(EngineConfig(kv_bytes=1 << 30 if proof.is_full else 64 << 20)) as engine:
        info = engine.add_model(model, name="model")
        prompts = Prompts(info.vocab_size)
        with Streams(engine, "model") as streams:
            started = streams.start([prompts.make(32) for _ in range(STREAMS)], max_tokens=2 * tokens + STREAMS)
            streams.wait(started, 1)
            every = EveryTime()
            engine.loop.scheduler.stats.plan_ns = every
            streams.window(started, tokens)
    p99 = quantile([value / 1e6 for value in every.values], 0.99)
    middle = statistics.median(every.values) / 1e6
    text = f"{STREAMS} streams, {every.count} steps: the scheduler takes {middle:.3f} ms a step, p99 {p99:.3f} ms"
    proof.demand(every.count >= tokens, f"{every.count} steps with {STREAMS} streams are timed")
    if proof.is_full:
        proof.demand(p99 < 1.0, text)
    else:
        proof.say(text)


def fitted_line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Base and slope of the line with the least squares of errors relative to y: the longest context does not rule."""
    weights = [1 / value**2 for value in y]
    total = sum(weights)
    middle_x = sum(w * a for w, a in zip(weights, x, strict=True)) / total
    middle_y = sum(w * b for w, b in zip(weights, y, strict=True)) / total
    spread = sum(w * (a - middle_x) ** 2 for w, a in zip(weights, x, strict=True))
    slope = sum(w * (a - middle_x) * (b - middle_y) for w, a, b in zip(weights, x, y, strict=True)) / spread
    return middle_y - slope * middle_x, slope


def _token_ms(engine: Engine, prompt: tuple[int, ...], tokens: int) -> float:
    """Time of a token after this prompt, the middle of `tokens`."""
    with Streams(engine, "model") as streams:
        started = streams.start([prompt], max_tokens=tokens + 1)
        return statistics.median(streams.window(started, tokens).gaps_ms)


if __name__ == "__main__":
    main()
