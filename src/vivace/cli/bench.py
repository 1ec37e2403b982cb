"""`vivace bench`: measure the engine on this machine, beside what the machine can do at most."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from vivace.cli.flags import Given, flags_of, with_flags
from vivace.cli.progress import TerminalProgress
from vivace.config import EngineConfig
from vivace.errors import ConfigError
from vivace.lab.settings import BenchConfig
from vivace.weights.entries import Catalog

if TYPE_CHECKING:
    from vivace.lab.bench_engine import Report

ENGINE = flags_of(EngineConfig, panel="The engine")
WORKS = flags_of(BenchConfig, panel="The works")


def make_bench() -> typer.Typer:
    """The verb with its parts as a typer application."""
    app = typer.Typer(no_args_is_help=True, help="Measure the engine on this machine, beside what the machine can do.")
    app.callback()(bench)
    app.command()(engine)
    return app


def bench() -> None:
    """Measure the engine on this machine, beside what the machine can do."""


@with_flags(works=WORKS, settings=ENGINE)
def engine(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A short name, hub id or path of a model for text; the default model if left out.",
            show_default=False,
        ),
    ] = None,
    steps_profile: Annotated[
        bool, typer.Option("--steps-profile", help="Show where the time of a step goes, too.")
    ] = False,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", help="Write the report with all readings to this file.", show_default=False),
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(help="Measure nothing: print the ratios of two reports, the older one first.", show_default=False),
    ] = None,
    *,
    works: Given,
    settings: Given,
) -> None:
    """Measure reading prompts, decoding streams, both at once, the first token, memory and the scheduler's own time.

    Everything goes through the engine as a client's request would: scheduler, pages, sampling and Python included;
    greedy, with random prompts from a fixed seed. The ceilings of the machine are measured in the same run, and each
    result says which share of its ceiling it reached. Measure on a machine that does nothing else.
    """
    from vivace.lab.report import compare_table  # brings torch

    console = Console()
    if compare is not None:
        before, after = (read_report(path) for path in compare)
        console.print(compare_table(before, after))
        return
    given: Given = {name: tuple(value) if isinstance(value, list) else value for name, value in works.items()}
    config = BenchConfig(**given)
    report = _measure(model or Catalog().default, EngineConfig(**settings), config, with_profile=steps_profile)
    if json_file is not None:
        json_file.write_text(json.dumps(report, indent=1) + "\n")
    show(console, report)


def read_report(path: Path) -> Any:
    """A report that --json wrote. Raises ConfigError for a file that holds none."""
    try:
        report = json.loads(path.read_text())
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}", hint="give files that --json wrote") from error
    if not isinstance(report, dict):
        raise ConfigError(f"{path} holds {type(report).__name__}, expected a report", hint="give files of --json")
    return report


def show(console: Console, report: Report) -> None:
    """Print a report as text."""
    from vivace.lab.report import engine_tables, heading

    console.print(heading(report), highlight=False, soft_wrap=True)
    for table in engine_tables(report):
        console.print()
        console.print(table)


def _measure(model: str, settings: EngineConfig, works: BenchConfig, *, with_profile: bool) -> Report:
    from vivace.lab.bench_engine import bench_engine
    from vivace.weights.catalog import resolve

    resolve(model, progress=TerminalProgress())  # a download shows bars of its own
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("loading", total=None)
        return bench_engine(
            model,
            settings,
            works,
            with_profile=with_profile,
            on_work=lambda label, done, total: bars.update(task, description=label, completed=done, total=total),
        )
