"""What `bench engine` measures: apart from what does it, so that the command line can show it at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BenchConfig:
    """What is measured, and how often.

    prefill   lengths of single prompts that are read
    streams   numbers of streams that decode together
    context   tokens of each stream's prompt
    tokens    tokens that each stream decodes while it is measured
    running   streams that decode while prompts arrive; 0 leaves this work out
    arrivals  prompts that arrive one after the other, of the first length of prefill
    repeats   times that each work is done, all works in turn
    seed      of the random prompts
    """

    prefill: tuple[int, ...] = (512,)
    streams: tuple[int, ...] = (1, 4, 16, 32, 64)
    context: int = 128
    tokens: int = 64
    running: int = 16
    arrivals: int = 4
    repeats: int = 3
    seed: int = 0
