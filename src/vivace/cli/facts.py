"""What `vivace info` tells, as plain data: gathered from the parts themselves, nothing is written down twice."""

from __future__ import annotations

import platform
from dataclasses import asdict
from typing import Any

from vivace import __version__
from vivace.config import VARIABLES, EngineConfig, cache_dir, read_environment
from vivace.runtime.build import commit
from vivace.weights.progress import size_text

CONTRACT = "token ids and logits do not depend on batch, neighbours, chunks, prefix cache or preemption"


def facts(config: EngineConfig) -> dict[str, dict[str, Any]]:
    """Everything, by section. An engine without models is made for it, as a run with this config would make one."""
    import torch

    from vivace.api import Engine
    from vivace.kernels.cpu import bind as native
    from vivace.runtime.device import probe_hardware

    with Engine(config) as engine:
        ops, resolved = engine.ops, engine.config
        threads = {"torch": torch.get_num_threads(), "engine": resolved.threads}
    machine = asdict(probe_hardware())
    for name in ("memory_bytes", "memory_free_bytes"):
        machine[name.removesuffix("_bytes")] = f"{machine.pop(name) / 2**30:.1f} GiB"
    return {
        "vivace": {"version": __version__, "commit": commit() or "not known", "python": platform.python_version()},
        "machine": machine,
        "torch": {"version": torch.__version__, "threads": threads},
        "kernels": {
            "native": native.why_missing() is None,
            "reason": native.why_missing() or "built for this machine",
            "choice": resolved.kernels,
            "operations": {
                op: {"implementation": bound.name, "invariant": bound.is_invariant}
                for op, bound in sorted(ops.bound.items())
            },
        },
        "determinism": {"contract": CONTRACT, "holds": ops.is_invariant, "because": _because(ops.bound)},
        "engine": asdict(resolved),
        "environment": environment_facts(),
        "models": cache_facts(),
    }


def environment_facts() -> dict[str, Any]:
    """Variable -> its value, else what holds without it."""
    found = read_environment()
    shown = {}
    for variable in VARIABLES:
        value = found.get(variable.name)
        if value is not None and variable.name.endswith("_KEY"):
            value = "(set)"
        shown[variable.name] = f"{value or f'not set ({variable.default})'}: {variable.meaning}"
    return shown


def cache_facts() -> dict[str, Any]:
    """The cache's folder and the models in it."""
    from vivace.weights.cache import Cache

    cache = Cache(cache_dir().absolute())
    models = {record.name: f"{size_text(record.num_bytes)}, {cache.path(record)}" for record in cache.records()}
    return {"cache": str(cache.root), **models}


def model_facts(name: str) -> dict[str, Any]:
    """What the files of a model say; weights are not read. Raises DownloadError if it is neither cached nor a path."""
    from vivace.models.load import read_config, read_config_json
    from vivace.weights.catalog import resolve
    from vivace.weights.files import open_weights
    from vivace.weights.measured import MeasuredFolder

    files = resolve(name, offline=True)
    file = open_weights(files.path)
    try:
        family, config = read_config(file, read_config_json(files.path))
        return {
            "name": files.name,
            "origin": files.origin,
            "licence": files.licence or "not stated",
            "digest": files.digest,
            **{f"with {found.features}": found.describe() for found in MeasuredFolder(cache_dir(), files.digest).all()},
            "path": str(files.path),
            "format": file.format,
            "tensors": len(file.tensors),
            "family": family.name,
            "kind": family.kind,
            **{key: str(value) for key, value in asdict(config).items()},
        }
    finally:
        file.close()


def _because(bound: dict[str, Any]) -> str:
    guilty = [op for op, choice in sorted(bound.items()) if not choice.is_invariant]
    if guilty:
        return f"these operations depend on their batch: {' '.join(guilty)} (kernels = rows makes it hold)"
    return "every operation gives the same bits in any batch"
