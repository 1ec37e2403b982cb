"""`vivace serve`: models behind the OpenAI API."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from vivace.cli.flags import Given, flags_of, with_flags
from vivace.config import EngineConfig, ServeConfig
from vivace.weights.entries import Catalog

SERVER = flags_of(ServeConfig, panel="The server")
ENGINE = flags_of(EngineConfig, panel="The engine")


@with_flags(server=SERVER, engine=ENGINE)
def serve(
    models: Annotated[
        list[str] | None, typer.Argument(metavar="MODEL", help="Short names, hub ids or paths.", show_default=False)
    ] = None,
    *,
    server: Given,
    engine: Given,
) -> None:
    """Serve models over HTTP as the OpenAI API does; without a name, the default model.

    The server listens on this machine only unless --host says otherwise. Ctrl-C lets running answers finish, a second
    one ends at once.
    """
    from vivace.cli.progress import TerminalProgress
    from vivace.serve.run import run  # brings the web server

    # The variable keeps the key out of the list of processes.
    server.setdefault("api_key", os.environ.get("VIVACE_API_KEY") or None)
    config = ServeConfig(**server, engine=EngineConfig(**engine))
    run(models or [Catalog().default], config, progress=TerminalProgress())
