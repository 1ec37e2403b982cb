"""Load a model for a verb: download bars and notes on stderr, closed at the end."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vivace.cli.progress import TerminalProgress
from vivace.config import EngineConfig

if TYPE_CHECKING:
    from vivace.api import Model

CLEAR_LINE = "\r\x1b[K"


@contextmanager
def loading(name: str, config: EngineConfig) -> Iterator[Model]:
    """A model, with an engine of its own until the end of the block."""
    from vivace.api import load  # brings torch

    is_seen = sys.stderr.isatty()
    if is_seen:
        print(f"loading {name} ...", end="", file=sys.stderr, flush=True)
    try:
        model = load(name, config=config, progress=TerminalProgress())
    finally:
        if is_seen:
            print(CLEAR_LINE, end="", file=sys.stderr, flush=True)
    with model:
        yield model
