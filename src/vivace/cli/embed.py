"""`vivace embed`: vectors of texts, as JSON lines, as a numpy file, or compared with each other."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vivace.cli.flags import Given, flags_of, with_flags
from vivace.cli.loading import loading
from vivace.cli.words import model_and_texts
from vivace.config import EngineConfig
from vivace.errors import InvalidRequest

if TYPE_CHECKING:
    from vivace.api import Embedding, Model

DEFAULT_MODEL = "minilm"
BATCH = 256  # texts given to the engine at once
ENGINE = flags_of(EngineConfig, panel="The engine")
WORDS_HELP = (
    f"The model, then texts. If the first word cannot be a model, {DEFAULT_MODEL} embeds all of them. Without texts: "
    "--file, or the lines of standard input."
)


@with_flags(engine=ENGINE)
def embed(
    words: Annotated[list[str] | None, typer.Argument(metavar="[MODEL] TEXT...", help=WORDS_HELP)] = None,
    file: Annotated[Path | None, typer.Option(help="Embed the lines of a file.", show_default=False)] = None,
    npy: Annotated[
        Path | None, typer.Option(help="Write the vectors to a numpy file, one row a text.", show_default=False)
    ] = None,
    dimensions: Annotated[
        int | None, typer.Option(help="Shorten the vectors (Matryoshka models).", show_default=False)
    ] = None,
    similarity: Annotated[bool, typer.Option("--similarity", help="Print the cosine of each pair.")] = False,
    *,
    engine: Given,
) -> None:
    """Turn texts into vectors: one JSON object a line, with text, vector and number of tokens."""
    name, texts = model_and_texts(words or [], DEFAULT_MODEL)
    texts = texts or _lines(file)
    if not texts:
        raise InvalidRequest("there is no text to embed", field="text", hint="give texts, --file or lines on stdin")
    with loading(name, EngineConfig(**engine)) as model:
        model.need("embed")
        found = _embed(model, texts, dimensions)
        if npy is None and not similarity:
            for text, item in zip(texts, found, strict=True):
                typer.echo(json_line(text, item))
            return
        _matrix_output([item.vector for item in found], npy, similarity)


def json_line(text: str, item: Embedding) -> str:
    """One result. Numbers are written as short as float32 allows."""
    vector = [float(str(number)) for number in item.vector]
    return json.dumps({"text": text, "vector": vector, "tokens": item.usage.prompt}, ensure_ascii=False)


def _embed(model: Model, texts: Sequence[str], dimensions: int | None) -> Iterator[Embedding]:
    for first in range(0, len(texts), BATCH):
        yield from model.embed(texts[first : first + BATCH], dimensions=dimensions)


def _matrix_output(vectors: Sequence[object], npy: Path | None, similarity: bool) -> None:
    import numpy as np

    matrix = np.array(vectors, dtype=np.float32)  # (texts, dimensions)
    if npy is not None:
        with npy.open("wb") as target:
            np.save(target, matrix)
        typer.echo(f"{npy}: {matrix.shape[0]} vectors of {matrix.shape[1]} numbers", err=True)
    if similarity:
        wide = matrix.astype(np.float64)
        unit = wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-12)
        for row in unit @ unit.T:
            typer.echo(" ".join(f"{cosine:7.4f}" for cosine in row))


def _lines(file: Path | None) -> list[str]:
    """Lines that hold text, of a file or of standard input (never of a terminal: nobody knows it waits)."""
    if file is None and sys.stdin.isatty():
        return []
    text = sys.stdin.read() if file is None else file.read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line.strip()]
