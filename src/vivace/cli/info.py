"""`vivace info`: what runs here and why: version, machine, kernels, determinism, settings, models."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from vivace.cli.facts import environment_facts, facts, model_facts
from vivace.cli.flags import Given, flags_of, with_flags
from vivace.config import EngineConfig

ENGINE = flags_of(EngineConfig, leave_out=("kernels",), panel="The engine")  # here --kernels asks to see them


@with_flags(engine=ENGINE)
def info(
    kernels: Annotated[
        bool, typer.Option("--kernels", help="Only: which implementation each operation uses, and why.")
    ] = False,
    env: Annotated[bool, typer.Option("--env", help="Only: the environment variables and their values.")] = False,
    model: Annotated[
        str | None, typer.Option(help="Only: a model that is cached or a path.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    *,
    engine: Given,
) -> None:
    """Print version, machine, kernels, whether the determinism contract holds, settings in force and cached models.

    Flags of the engine show what a run with them would use; VIVACE_KERNELS=rows vivace info shows other kernels.
    """
    if model is not None:
        report = {"model": model_facts(model)}
    elif env:
        report = {"environment": environment_facts()}
    else:
        report = facts(EngineConfig(**engine))
    if kernels:
        report = {"kernels": report["kernels"]}
    if not as_json and "kernels" in report:
        report["kernels"] = by_operation(report["kernels"]) if kernels else by_implementation(report["kernels"])
    typer.echo(json.dumps(report, indent=2) if as_json else as_text(report))


def as_text(report: dict[str, Any]) -> str:
    """Sections with one line per entry, values in one column; tables have one line per row."""
    return "\n\n".join(f"{title}\n{_section(content)}" for title, content in report.items())


def by_operation(kernels: dict[str, Any]) -> dict[str, Any]:
    """The section with a line per operation."""
    rows = {
        op: f"{choice['implementation']:<24} {'invariant' if choice['invariant'] else 'depends on its batch'}"
        for op, choice in kernels["operations"].items()
    }
    return {**_without_operations(kernels), **rows}


def by_implementation(kernels: dict[str, Any]) -> dict[str, Any]:
    """The section with a line per implementation: the operations that use it."""
    rows: dict[str, list[str]] = {}
    for op, choice in kernels["operations"].items():
        rows.setdefault(choice["implementation"], []).append(op)
    return {**_without_operations(kernels), **rows}


def _without_operations(kernels: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in kernels.items() if key != "operations"}


def _section(content: Any) -> str:
    if not content:
        return "  none"
    width = max(len(key) for key in content)
    return "\n".join(f"  {key:<{width}}  {_value(value)}" for key, value in content.items())


def _value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_value(inner)}" for key, inner in value.items())
    return str(value)
