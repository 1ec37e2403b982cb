"""The program `vivace`: its verbs, and how errors are shown.

Exit status: 0 done, 1 an error that is explained, 2 wrong usage, 130 stopped with Ctrl-C. Modules of verbs import what
is heavy (torch, the server) when they run, so that `vivace --help` comes at once.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from vivace import __version__
from vivace.cli.bench import make_bench
from vivace.cli.embed import embed
from vivace.cli.info import info
from vivace.cli.models import models
from vivace.cli.pull import pull
from vivace.cli.run import run
from vivace.cli.serve import serve
from vivace.cli.tokenize import tokenize
from vivace.config import read_environment
from vivace.errors import VivaceError

# Usage errors are what BadParameter is derived from; typer exports no name for them.
_FOR_TYPER = (typer.Exit, typer.Abort, typer.BadParameter.__mro__[1], BrokenPipeError)
VERBS = (run, embed, serve, pull, models, tokenize, info)


class Verbs(TyperGroup):
    """The verbs. An error becomes a message and a hint on stderr; with --debug it keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:  # a typer.Context; its base class is private to typer
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except Exception as error:
            # A reader of our output that has gone, such as `head`, is typer's to end quietly, as usage errors are.
            if isinstance(error, _FOR_TYPER) or ctx.params["debug"]:
                raise
            show_error(*_explain(error))
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
    app.add_typer(make_bench(), name="bench")
    return app


def main() -> None:
    """Run the program on the words of the command line."""
    _open_missing_streams()
    make_app()()


def print_version(is_asked: bool) -> None:
    """Print the version and end, before a verb is missed."""
    if is_asked:
        typer.echo(f"vivace {__version__}")
        raise typer.Exit


def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=print_version)
    ] = False,
) -> None:
    """Vivace runs open models: one answer, a chat, vectors, or a server that speaks the OpenAI API.

    Start with: vivace run smollm2 "What is the capital of France?"
    """
    del debug, version  # read by Verbs and print_version
    read_environment()  # a misspelt variable is an error for every verb


def show_error(message: str, hint: str) -> None:
    """Print an error on stderr, in red where the terminal has colours."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(Text(f"error: {message}", style="red"))
    if hint:
        console.print(Text(f"hint: {hint}"))


def _explain(error: Exception) -> tuple[str, str]:
    """Message and hint of any error."""
    if isinstance(error, VivaceError):
        return error.message, error.hint
    if isinstance(error, UnicodeError):  # of an argument, standard input or a file
        return f"a text is not UTF-8: {error}", "convert it first, for example with iconv"
    if isinstance(error, OSError):
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return str(error), "free some space" if is_full else "check the path and its permissions"
    return f"{type(error).__name__}: {error}", "a fault of Vivace: report it with the output of `vivace --debug ...`"


def _open_missing_streams() -> None:
    """Open what the caller has closed (such as `vivace run ... <&-`) as nothing to read and a place to write to: else
    Python has None there, and the next file or socket that is opened would get its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
