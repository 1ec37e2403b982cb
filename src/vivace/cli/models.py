"""`vivace models`: the models with a short name, and what is in the cache."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from vivace import config
from vivace.weights.cache import Cache, Record
from vivace.weights.entries import Catalog, Entry
from vivace.weights.packed_files import PackedFiles
from vivace.weights.progress import size_text


@dataclass(frozen=True)
class Row:
    """One model as listed. `path` and `origin` are "" while it is not cached."""

    name: str
    title: str
    kind: str
    num_bytes: int
    licence: str
    digest: str
    sources: tuple[str, ...]
    origin: str
    path: str


def models(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of a table.")] = False,
    cache_dir: Annotated[Path | None, typer.Option(help="Folder of downloads.", show_default="VIVACE_CACHE")] = None,
    clear_packed: Annotated[
        bool, typer.Option("--clear-packed", help="Remove the packed weights that earlier starts kept.")
    ] = False,
) -> None:
    """List the models with a short name and those in the cache, with size, licence and source.

    Below them are the packed weights of earlier starts, which make the next one faster.
    """
    cache = Cache(cache_dir or config.cache_dir())
    packed = PackedFiles(cache.root / "packed")
    if clear_packed:
        typer.echo(f"removed {size_text(packed.clear())} of packed weights", err=as_json)
    catalog = Catalog()
    rows = list_models(catalog, cache)
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows], indent=2))
        return
    table = Table("model", "kind", "size", "licence", "cached", "what", box=None, pad_edge=False)
    for row in rows:
        name = f"{row.name} (default)" if row.name == catalog.default else row.name
        size, cached = size_text(row.num_bytes), "yes" if row.path else "no"
        table.add_row(name, row.kind or "?", size, row.licence or "not stated", cached, row.title)
    Console().print(table)
    typer.echo(f"\ncache: {cache.root}")
    for record in packed.records():
        typer.echo(f"packed: {record.name or 'damaged, replaced when it is needed'}, {size_text(record.num_bytes)}")


def list_models(catalog: Catalog, cache: Cache) -> list[Row]:
    """The catalog's models in its order, then the others of the cache by name."""
    records = {(record.name, record.digest): record for record in cache.records()}
    rows = [
        _entry_row(entry, records.pop((entry.name, entry.digest), None), cache) for entry in catalog.entries.values()
    ]
    return rows + [_record_row(record, cache) for record in records.values()]


def _entry_row(entry: Entry, record: Record | None, cache: Cache) -> Row:
    return Row(
        name=entry.name,
        title=entry.title,
        kind=entry.kind,
        num_bytes=entry.num_bytes,
        licence=entry.licence,
        digest=entry.digest,
        sources=tuple(str(source) for source in entry.sources),
        origin=record.origin if record else "",
        path=str(cache.path(record)) if record else "",
    )


def _record_row(record: Record, cache: Cache) -> Row:
    return Row(
        name=record.name,
        title=", ".join(record.asked),
        kind=record.kind,
        num_bytes=record.num_bytes,
        licence=record.licence,
        digest=record.digest,
        sources=(),
        origin=record.origin,
        path=str(cache.path(record)),
    )
