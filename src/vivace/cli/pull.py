"""`vivace pull`: bring models into the cache, verified, and say where they came from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vivace.cli.progress import TerminalProgress
from vivace.errors import VivaceError
from vivace.weights.cache import ModelFiles
from vivace.weights.catalog import resolve
from vivace.weights.entries import Catalog

NAMES_HELP = "Short names (see `vivace models`), hub ids (org/name, org/name:file.gguf, org/name@revision) or paths."


def pull(
    names: Annotated[list[str] | None, typer.Argument(metavar="MODEL", help=NAMES_HELP, show_default=False)] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Only check what is cached or installed.")] = False,
    cache_dir: Annotated[Path | None, typer.Option(help="Folder for downloads.", show_default="VIVACE_CACHE")] = None,
) -> None:
    """Download models and check every byte of them; the default model if none is named.

    What is cached is checked again and kept; a branch of a hub repository that has moved is fetched anew. An
    interrupted download goes on where it stopped."""
    failed = False
    for name in names or [Catalog().default]:
        try:
            files = resolve(
                name, cache_dir=cache_dir, offline=offline or None, refresh=True, progress=TerminalProgress()
            )
        except VivaceError as error:
            typer.echo(f"error: {error}", err=True)
            failed = True
            continue
        except KeyboardInterrupt:
            typer.echo(f"stopped; `vivace pull {name}` goes on from here", err=True)
            raise typer.Exit(130) from None
        typer.echo(describe(files))
    if failed:
        raise typer.Exit(1)


def describe(files: ModelFiles) -> str:
    """The model in words: one line each for origin, licence, digest and path."""
    return "\n".join(
        (
            files.name,
            f"  origin   {files.origin}",
            f"  licence  {files.licence or 'not stated'}",
            f"  sha256   {files.digest}",
            f"  path     {files.path}",
        )
    )
