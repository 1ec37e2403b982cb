"""What this machine can do at most, measured in the run that is compared with it: reading, float and integer work.

Native loops do nothing else: read memory, fused multiply-adds, dot products of bytes. Without native kernels torch's
sum and matrix product stand in; they may stay below the true ceiling, and there is no integer one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from vivace.kernels.cpu import bind
from vivace.kernels.rooms import huge_bytes

MEMORY_FLOATS = 1 << 26  # 256 MB: more than the caches hold
LEAST_TIME_S = 2e-4  # one measurement spans at least this, so that the clock does not matter
ROUNDS = 1_000_000
SECONDS = 0.3


@dataclass(frozen=True)
class Ceilings:
    """The best of several tries. Operations count a product and its sum as two.

    source            the loops that found them
    threads           threads that took part
    bytes_per_s       read from memory, by 1, 2, ... threads
    floats_per_s      float32 operations of all threads
    integers_per_s    operations on bytes of all threads; None where nothing measures them
    integers_by       the instruction that does them
    """

    source: str
    threads: int
    bytes_per_s: tuple[float, ...]
    floats_per_s: float
    integers_per_s: float | None = None
    integers_by: str = ""

    @property
    def read_bytes_per_s(self) -> float:
        """Read from memory by all threads."""
        return self.bytes_per_s[-1]

    def describe(self) -> str:
        """One line for people."""
        integers = f", {self.integers_per_s / 1e9:.0f} Gop/s ({self.integers_by})" if self.integers_per_s else ""
        return (
            f"ceilings ({self.source} loops, {self.threads} threads): {self.read_bytes_per_s / 1e9:.1f} GB/s read, "
            f"{self.floats_per_s / 1e9:.0f} Gflop/s{integers}"
        )


def measure_ceilings(threads: int, seconds: float = SECONDS) -> Ceilings:
    """Measure all ceilings, `seconds` for each."""
    # In the pages that weights stand in, and written: what was never written is one page of zeros, read from a cache.
    memory = huge_bytes(4 * MEMORY_FLOATS).view(torch.float32).fill_(1.0)
    if bind.why_missing() is not None:
        return _by_torch(memory, threads, seconds)
    native = bind.NativeOps(None, threads)
    reading = [_read_rate(bind.NativeOps(None, count), memory, seconds) for count in range(1, threads)]
    floats, integers = native.multiply_add(ROUNDS), native.byte_dots(ROUNDS)
    return Ceilings(
        f"native {native.isa}",
        threads,
        (*reading, _read_rate(native, memory, seconds)),
        floats / best_time(lambda: native.multiply_add(ROUNDS), seconds),
        integers / best_time(lambda: native.byte_dots(ROUNDS), seconds),
        bind.byte_dots_by(),
    )


def best_time(call: Callable[[], Any], seconds: float) -> float:
    """Seconds per call: the best of as many measurements as fit into `seconds`, three at least."""
    call()
    start = time.perf_counter()
    call()
    once = max(time.perf_counter() - start, 1e-7)
    inner = max(1, round(LEAST_TIME_S / once))
    best = float("inf")
    for _ in range(max(3, round(seconds / (inner * once)))):
        start = time.perf_counter()
        for _ in range(inner):
            call()
        best = min(best, (time.perf_counter() - start) / inner)
    return best


def _read_rate(native: bind.NativeOps, memory: torch.Tensor, seconds: float) -> float:
    return memory.nbytes / best_time(lambda: native.read_memory(memory), seconds)


def _by_torch(memory: torch.Tensor, threads: int, seconds: float) -> Ceilings:
    before = torch.get_num_threads()
    square = torch.ones(1024, 1024)
    reading = []
    try:
        for count in range(1, threads + 1):
            torch.set_num_threads(count)
            reading.append(memory.nbytes / best_time(memory.sum, seconds))
        floats = 2 * 1024**3 / best_time(lambda: square @ square, seconds)
    finally:
        torch.set_num_threads(before)
    return Ceilings("torch", threads, tuple(reading), floats)
