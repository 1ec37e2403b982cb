"""The program `vivace`: its verbs, and how errors are shown.

Exit status: 0 done, 1 an error that is explained, 2 wrong usage, 130 stopped with Ctrl-C. Modules of verbs import what
is heavy (torch, the server) when they run, so that `vivace --help` comes at once.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from vivace import __version__
from vivace.cli.embed import embed
from vivace.cli.info import info
from vivace.cli.models import models
from vivace.cli.pull import pull
from vivace.cli.run import run
from vivace.cli.serve import serve
from vivace.cli.tokenize import tokenize
from vivace.errors import VivaceError

VERBS = (run, embed, serve, pull, models, tokenize, info)


class Verbs(TyperGroup):
    """The verbs. An error becomes a message and a hint on stderr; with --debug it keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:  # a typer.Context; its base class is private to typer
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except BrokenPipeError:
            raise  # the reader of our output has gone, such as `head`: the frame around us ends quietly
        except VivaceError as error:
            if ctx.params["debug"]:
                raise
            show_error(error.message, error.hint)
            raise typer.Exit(1) from error
        except OSError as error:
            if ctx.params["debug"]:
                raise
            show_error(str(error), "check the path and its permissions")
            raise typer.Exit(1) from error


def make_app() -> typer.Typer:
    """The command line as a typer application."""
    app = typer.Typer(
        name="vivace",
        cls=Verbs,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    )
    app.callback()(options)
    for verb in VERBS:
        app.command()(verb)
    return app


def main() -> None:
    """Run the program on the words of the command line."""
    make_app()()


def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    """Vivace runs open models: one answer, a chat, vectors, or a server that speaks the OpenAI API.

    Start with: vivace run smollm2 "What is the capital of France?"
    """
    del debug  # read by Verbs
    if version:
        typer.echo(f"vivace {__version__}")
        raise typer.Exit


def show_error(message: str, hint: str) -> None:
    """Print an error on stderr, in red where the terminal has colours."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(Text(f"error: {message}", style="red"))
    if hint:
        console.print(Text(f"hint: {hint}"))
