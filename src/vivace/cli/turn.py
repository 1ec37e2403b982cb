"""One turn of a conversation: asked, shown as it comes, counted."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from vivace.errors import InvalidRequest

if TYPE_CHECKING:
    from vivace.api import Delta, Model
    from vivace.pipelines.requests import Usage

Message = dict[str, str]


def conversation(system: str | None, prompt: str) -> list[Message]:
    """The messages of a first turn."""
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": prompt}]


def ask(model: Model, messages: Sequence[Message], options: Mapping[str, Any], *, is_raw: bool) -> Iterator[Delta]:
    """The pieces of one answer; `is_raw`: the last message alone is continued, without a template.

    Raises InvalidRequest for a system message that no template could place, ContextLengthExceeded for a long prompt.
    """
    if not is_raw:
        return model.chat_stream(messages, **options)
    if messages[0]["role"] == "system":
        raise InvalidRequest(
            "a raw prompt has no place for a system message", field="system", hint="write it into the prompt"
        )
    return model.stream(messages[-1]["content"], **options)


def show(deltas: Iterator[Delta], *, is_quiet: bool = False) -> str:
    """Print the pieces as they come, with a line end after the last; returns the text."""
    pieces = []
    with closing(deltas):  # type: ignore[type-var]
        for delta in deltas:
            pieces.append(delta.text)
            if not is_quiet:
                typer.echo(delta.text, nl=False)
    if not is_quiet:
        typer.echo("")
    return "".join(pieces)


class Meter:
    """Counts and times one answer while it passes through."""

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self.finish_reason: str | None = None
        self._start = time.perf_counter()
        self._first: float | None = None
        self._end = self._start

    def watch(self, deltas: Iterator[Delta]) -> Iterator[Delta]:
        """The same pieces."""
        with closing(deltas):  # type: ignore[type-var]
            for delta in deltas:
                if self._first is None:
                    self._first = time.perf_counter()
                self.usage = delta.usage or self.usage
                self.finish_reason = delta.finish_reason or self.finish_reason
                yield delta
        self._end = time.perf_counter()

    def report(self, model: str, text: str) -> dict[str, Any]:
        """The answer as data."""
        usage = None if self.usage is None else asdict(self.usage)
        return {"model": model, "text": text, "finish_reason": self.finish_reason, "usage": usage}

    def line(self) -> str:
        """The counts in words: tokens, the wait for the first piece, and speed after it."""
        if self.usage is None or self._first is None:
            return "no answer"
        used = self.usage
        counts = f"prompt {used.prompt} ({used.cached} cached), answer {used.generated} tokens"
        if drafted := used.accepted + used.rejected:
            counts += f", {used.accepted} of {drafted} guesses right"
        after_first = self._end - self._first
        speed = f", {(self.usage.generated - 1) / after_first:.1f} tokens/s" if self.usage.generated > 1 else ""
        return f"{counts}, first after {self._first - self._start:.2f} s{speed} ({self.finish_reason})"
