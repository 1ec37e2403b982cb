"""Vivace from Python: load a model, then generate, chat or embed; blocking, streaming or async.

`load` gives a model with an engine of its own. The parts are assembled in `api.engine` and nowhere else; everything
that touches tensors is imported when a model is loaded, so that a process that only speaks with an engine stays light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vivace.api.info import ModelInfo, Port
from vivace.api.model import Model
from vivace.api.options import Options
from vivace.api.results import Candidate, Completion, Delta, Embedding, Token
from vivace.config import EngineConfig
from vivace.weights.progress import Progress

if TYPE_CHECKING:
    from vivace.api.engine import Engine

__all__ = [
    "Candidate",
    "Completion",
    "Delta",
    "Embedding",
    "Engine",
    "Model",
    "ModelInfo",
    "Options",
    "Port",
    "Token",
    "load",
]


def load(name: str = "smollm2", *, config: EngineConfig | None = None, progress: Progress | None = None) -> Model:
    """Load a model by short name, hub id (org/name) or path, and start an engine for it; close it when done.

    Raises UnknownModel, DownloadError, WeightError, UnsupportedModel or ConfigError.
    """
    from vivace.api.engine import Engine

    engine = Engine(config)
    try:
        info = engine.add_model(name, progress=progress)
        return Model(info, engine.texts[info.name], engine, owns_port=True)
    except BaseException:
        engine.close()
        raise


def __getattr__(name: str) -> Any:
    if name == "Engine":
        from vivace.api.engine import Engine

        return Engine
    raise AttributeError(f"module 'vivace.api' has no attribute '{name}'")
