"""What the native path is asked for: every instruction set, threads, and mixes of weights, activations and KV pages.

The undisturbed results of a case come from the portable kernels on one thread, call by call. All schedules of the case,
recorded and replayed on each instruction set of this machine, on one thread or two in turn, must give those bits.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import get_args

import torch

from tests.identities.files import TYPES, WEIGHTS, make_weights
from tests.identities.world import World, run_schedule
from vivace.config import ActivationFormat, KVFormat
from vivace.kernels.cpu.bind import supported_isas

ASSETS = ("tiny-llama", "tiny-gemma3")
THREADS = (1, 2)
ACTIVATIONS = tuple(kind for kind in get_args(ActivationFormat) if kind != "f32")  # that makes weights dense
PROCESSES = 2


@dataclass(frozen=True)
class Case:
    """One model as it is loaded and kept."""

    asset: str
    weights: str
    kv_format: KVFormat
    activations: ActivationFormat

    def __str__(self) -> str:
        return f"{self.asset} {self.weights}, {self.activations}, KV pages {self.kv_format}"


@dataclass(frozen=True)
class Part:
    """Some schedules of a case; `weights` is the file that holds its model."""

    case: Case
    weights: Path
    seeds: Sequence[int]


@dataclass
class Found:
    """What a part led to. `seen` counts by instruction set, `runs` schedules by instruction set and threads."""

    seen: dict[str, Counter[str]]
    runs: Counter[tuple[str, int]]
    different: list[str]


def cases() -> list[Case]:
    """Every mix; the activations of dense weights are not quantized."""
    mixes = [(weights, kind) for weights in WEIGHTS for kind in (ACTIVATIONS if weights in TYPES else ACTIVATIONS[:1])]
    return [
        Case(asset, weights, kv_format, kind)
        for weights, kind in mixes
        for kv_format in get_args(KVFormat)
        for asset in ASSETS
    ]


def run_cases(chosen: Sequence[Case], schedules: int, folder: Path) -> Iterator[Found]:
    """The schedules 0 .. n - 1, dealt out to the cases, in as many processes as the smallest machine has cores."""
    parts = [
        Part(case, make_weights(case.asset, case.weights, folder), range(place, schedules, len(chosen)))
        for place, case in enumerate(chosen)
    ]
    with ProcessPoolExecutor(PROCESSES, get_context("spawn"), initializer=_begin) as processes:
        yield from processes.map(run_part, parts)


def run_part(part: Part) -> Found:
    """Each schedule on each instruction set; threads take turns, so that every set runs with both counts."""
    case, found = part.case, Found({isa: Counter() for isa in supported_isas()}, Counter(), [])
    options = {"weights": part.weights, "activations": case.activations}
    first = World(case.asset, "native", case.kv_format, isa="portable", **options)
    worlds = {(isa, threads): first.on(isa, threads) for isa in supported_isas() for threads in THREADS}
    for turn, seed in enumerate(part.seeds):
        for place, isa in enumerate(supported_isas()):
            threads = THREADS[(turn + part.seeds[0] + place) % len(THREADS)]
            try:
                run_schedule(worlds[isa, threads], seed, found.seen[isa])
            except AssertionError as error:
                found.different.append(f"{case}, {isa}, {threads} threads: {error}")
            found.runs[isa, threads] += 1
    return found


def _begin() -> None:
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # the planted faults
