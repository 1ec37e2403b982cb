"""Vivace: one inference engine for every kind of open model, on a plain CPU first.

import vivace

with vivace.load("smollm2") as model:
    print(model.chat("What is the capital of France?"))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from vivace.api import Completion, Delta, Embedding, Engine, Model, Options, load
    from vivace.config import EngineConfig, ServeConfig
    from vivace.errors import VivaceError

# Public name -> the module that defines it, imported when the name is first used.
_PUBLIC = {
    "Completion": "vivace.api",
    "Delta": "vivace.api",
    "Embedding": "vivace.api",
    "Engine": "vivace.api",
    "EngineConfig": "vivace.config",
    "Model": "vivace.api",
    "Options": "vivace.api",
    "ServeConfig": "vivace.config",
    "VivaceError": "vivace.errors",
    "load": "vivace.api",
}
__all__ = [
    "Completion",
    "Delta",
    "Embedding",
    "Engine",
    "EngineConfig",
    "Model",
    "Options",
    "ServeConfig",
    "VivaceError",
    "__version__",
    "load",
]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        import importlib

        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'vivace' has no attribute '{name}'")
