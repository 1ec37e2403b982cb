"""Load a model for a verb: a note, download bars and messages on stderr, closed at the end."""

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


class LoadingNote(TerminalProgress):
    """A line that says what is loaded, until something else is to be shown; on a terminal only."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._is_shown = sys.stderr.isatty()
        if self._is_shown:
            print(f"loading {name} ...", end="", file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        self.clear()
        super().note(text)

    def begin(self, label: str, total_bytes: int | None) -> None:
        self.clear()
        super().begin(label, total_bytes)

    def clear(self) -> None:
        """Take the line away."""
        if self._is_shown:
            print(CLEAR_LINE, end="", file=sys.stderr, flush=True)
        self._is_shown = False


@contextmanager
def loading(name: str, config: EngineConfig) -> Iterator[Model]:
    """A model, with an engine of its own until the end of the block."""
    from vivace.api import load  # brings torch

    progress = LoadingNote(name)
    try:
        model = load(name, config=config, progress=progress)
    finally:
        progress.clear()
    with model:
        yield model
