"""Vivace as a worker, through its engine as a client's request goes. Usage: vivace_worker.py MODEL [FIELD=VALUE ...]

Fields are those of EngineConfig, written as the flags of the command line.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from protocol import Work, serve, take_stdout

from vivace import __version__
from vivace.api.engine import Engine
from vivace.cli.flags import find_flag, flags_of
from vivace.config import EngineConfig
from vivace.lab.costs import costs_of
from vivace.lab.settings import BenchConfig
from vivace.lab.streams import Prompts
from vivace.lab.works import Bench, decode, prefill
from vivace.pipelines.generate import GeneratePipeline
from vivace.runtime.build import commit


def main(model: str, *fields: str) -> None:
    take_stdout()
    pairs = (field.split("=", 1) for field in fields)
    flags = flags_of(EngineConfig)
    settings: dict[str, Any] = {name: find_flag(flags, name).parse(value) for name, value in pairs}
    with Engine(EngineConfig(**settings)) as engine:
        info = engine.add_model(model, name="model")
        pipeline = engine.pipelines["model"]
        assert isinstance(pipeline, GeneratePipeline), "a model that makes vectors has no tokens to time"
        prompts = Prompts(info.vocab_size)
        about = {
            "version": f"{__version__}, commit {commit() or 'not known'}",
            "format": ", ".join(costs_of(pipeline.model, 0).formats),
            "weight_bytes": costs_of(pipeline.model, 0).weight_bytes,
            "unit_bytes": sum(group.unit_bytes for group in pipeline.lane.groups),
            "kv": ", ".join(sorted({store.format for store in pipeline.stores})),
            "flags": {**settings, "VIVACE_ISA": os.environ.get("VIVACE_ISA", "not set")},
        }
        serve(about, lambda work: _measure(engine, prompts, work))


def _measure(engine: Engine, prompts: Prompts, work: Work) -> dict[str, float]:
    if not work["tokens"]:
        return prefill(Bench(engine, "model", BenchConfig(), prompts), work["context"])
    config = BenchConfig(context=work["context"], tokens=work["tokens"])
    return decode(Bench(engine, "model", config, prompts), work["streams"])


if __name__ == "__main__":
    main(*sys.argv[1:])
