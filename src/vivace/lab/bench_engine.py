"""Measures an engine on one model: every kind of work, beside the ceilings of the machine, as one report of plain data.

    report = bench_engine("smollm2", EngineConfig(), BenchConfig())

All works are done in turn, several times, and every reading is kept: the best one is what the engine can do, the
spread tells how quiet the machine was.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from vivace import __version__
from vivace.api.engine import Engine
from vivace.config import EngineConfig
from vivace.errors import ConfigError
from vivace.lab.ceilings import Ceilings, measure_ceilings
from vivace.lab.costs import Costs, costs_of, share_of
from vivace.lab.memory import Resident, reset_peak, resident
from vivace.lab.settings import BenchConfig
from vivace.lab.steps_profile import StepsProfile
from vivace.lab.streams import Prompts
from vivace.lab.works import Bench, Readings, Work, check, works_of
from vivace.pipelines.generate import GeneratePipeline
from vivace.runtime.build import commit
from vivace.runtime.device import probe_hardware
from vivace.weights.progress import Progress

KIND = "vivace bench engine"
Report = dict[str, Any]
OnWork = Callable[[str, int, int], None]  # what is done now, how many are done, how many there are


def bench_engine(
    model: str,
    engine_config: EngineConfig,
    config: BenchConfig,
    *,
    with_profile: bool = False,
    progress: Progress | None = None,
    on_work: OnWork = lambda label, done, total: None,
) -> Report:
    """Load the model, measure, and return the report. Raises what loading raises, and ConfigError for a model that
    does not generate or for work that it cannot take."""
    load_average = [os.getloadavg()[0]]
    ceilings = measure_ceilings(engine_config.threads or probe_hardware().cores)
    before = resident()
    reset_peak()
    with Engine(engine_config) as engine:
        began = time.perf_counter()
        info = engine.add_model(model, name="model", progress=progress)
        load_s, loaded = time.perf_counter() - began, resident()
        pipeline = engine.pipelines["model"]
        if not isinstance(pipeline, GeneratePipeline):
            raise ConfigError(f"'{model}' makes vectors, there are no tokens to time", hint="choose a model for text")
        check(config, engine.config, info.context_length)
        costs = costs_of(pipeline.model, sum(group.unit_bytes for group in pipeline.lane.groups))
        bench = Bench(engine, "model", config, Prompts(info.vocab_size, config.seed))
        works = works_of(config)
        readings = _measure(bench, works, on_work)
        profile = _profile(bench, works) if with_profile else None
        load_average.append(os.getloadavg()[0])
        return {
            "kind": KIND,
            "model": {"name": model, "digest": info.digest, **asdict(costs)},
            "machine": {**asdict(probe_hardware()), "load_average": load_average},
            "software": {
                "vivace": __version__,
                "commit": commit() or "not known",
                "python": platform.python_version(),
                "torch": torch.__version__,
            },
            "settings": {**asdict(config), **asdict(engine.config), **_choices(engine, pipeline)},
            "ceilings": asdict(ceilings),
            "memory": {**_memory(before, loaded), "load_s": load_s},
            "results": _results(works, readings, costs, ceilings),
            "profile": profile,
        }


def best(metric: str, values: list[float]) -> float:
    """The best reading of a metric: the most of a rate, the least of a time."""
    return max(values) if is_rate(metric) else min(values)


def is_rate(metric: str) -> bool:
    """Whether more of it is better."""
    return metric.endswith("_per_s")


def _measure(bench: Bench, works: list[Work], on_work: OnWork) -> list[list[Readings]]:
    """Per work, its readings. The first prompt warms up: pages that were never written, caches, the pool's threads."""
    total = len(works) * bench.config.repeats
    works[0].run(bench)
    found: list[list[Readings]] = [[] for _ in works]
    for repeat in range(bench.config.repeats):
        for index, work in enumerate(works):
            on_work(work.name, repeat * len(works) + index, total)
            found[index].append(work.run(bench))
    on_work("done", total, total)
    return found


def _results(works: list[Work], readings: list[list[Readings]], costs: Costs, ceilings: Ceilings) -> list[Report]:
    rows = []
    for work, found in zip(works, readings, strict=True):
        for metric in found[0]:
            values = [reading[metric] for reading in found]
            row: Report = {"work": work.name, "metric": metric, "best": best(metric, values), "values": values}
            if metric == "tokens_per_s" and work.rows:
                step_s = work.rows / row["best"]
                drawn = work.rows if work.rows == work.streams else work.streams
                row |= asdict(
                    share_of(
                        costs,
                        ceilings,
                        step_s,
                        step_bytes=costs.step_bytes(work.streams, work.context),
                        step_operations=costs.step_operations(work.rows, drawn),
                    )
                )
            rows.append(row)
    return rows


def _profile(bench: Bench, works: list[Work]) -> Report:
    """Microseconds by stage of a typical step of each work whose steps are all alike."""
    found = {}
    for work in works:
        if work.rows:
            with StepsProfile(bench.engine, bench.model) as profile:
                work.run(bench)
            found[work.name] = profile.mean(work.streams, work.rows)
    return found


def _choices(engine: Engine, pipeline: GeneratePipeline) -> Report:
    """What was chosen at load: the implementation of each operation, and the format of keys and values."""
    return {
        "operations": {op: bound.name for op, bound in sorted(engine.ops.bound.items())},
        "kv_format": sorted({store.format for store in pipeline.stores}),
        "greedy": True,
        "ignore_eos": True,
    }


def _memory(before: Resident, loaded: Resident) -> dict[str, int]:
    """Resident bytes: before and after the model was loaded, at the peak of loading, and after all works."""
    return {
        "before_bytes": before.now,
        "load_peak_bytes": loaded.peak,
        "loaded_bytes": loaded.now,
        "end_bytes": resident().now,
    }
