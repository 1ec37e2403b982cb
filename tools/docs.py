"""Write docs/reference from the code: `python -m tools.docs`, or with --check only say which pages are stale.

Nothing is told twice: flags come from the commands, settings from the dataclasses, HTTP from the OpenAPI description of
the server, errors, techniques and operations from their docstrings, models from the tables that load them.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import typer

from tools.docs_http import http_page
from vivace import errors
from vivace.api import Options
from vivace.cli import bench
from vivace.cli.flags import field_help
from vivace.cli.main import VERBS, make_app
from vivace.config import VARIABLES, EngineConfig, ServeConfig
from vivace.kernels import ops
from vivace.models import index as models
from vivace.registry import Registry
from vivace.techniques import index as techniques
from vivace.weights.entries import Catalog
from vivace.weights.progress import size_text

TARGET = Path(__file__).resolve().parents[1] / "docs" / "reference"
NOTE = "<!-- Written by `make docs` from the code: edit the code instead. -->"


def pages() -> dict[str, str]:
    """Every page of the reference by its file name."""
    makers: tuple[Callable[[], str], ...] = (
        *(cli_page, config_page, http_page, errors_page, techniques_page, models_page, ops_page),
    )
    return {f"{maker.__name__.removesuffix('_page')}.md": f"{NOTE}\n\n{maker().strip()}\n" for maker in makers}


def cli_page() -> str:
    """The verbs with their arguments and flags."""
    commands = typer.main.get_command(make_app()).commands  # type: ignore[attr-defined]
    parts = [
        "# The command line",
        "`vivace VERB ...`, or `python -m vivace VERB ...`. Exit status: 0 done, 1 an error that is explained on "
        "standard error, 2 wrong usage, 130 stopped with Ctrl-C. `vivace --debug VERB ...` shows the traceback of an "
        "error, `vivace --version` prints the version.",
    ]
    verbs = [(verb.__name__, verb, commands[verb.__name__]) for verb in VERBS]
    for name, verb, command in [*verbs, ("bench engine", bench.engine, commands["bench"].commands["engine"])]:
        kinds = {
            item.name: _kind(item.annotation) for item in inspect.signature(verb, eval_str=True).parameters.values()
        }
        arguments = [item for item in command.params if item.param_type_name == "argument"]
        words = "".join(f" {item.metavar or item.name.upper()}" for item in arguments)
        parts += [f"## {name}", f"    vivace {name}{words} [flags]", _paragraphs(command.help)]
        parts += [f"`{item.metavar or item.name.upper()}`: {item.help}" for item in arguments if item.help]
        options = [item for item in command.params if item not in arguments and item.name != "help"]
        for panel in dict.fromkeys(item.rich_help_panel for item in options):
            rows = [
                (", ".join(f"`{word}`" for word in (*item.opts, *item.secondary_opts)), kinds[item.name], item.help)
                for item in options
                if item.rich_help_panel == panel
            ]
            parts.append(table((panel or "Flag", "value", "meaning"), rows))
    return "\n\n".join(parts)


def config_page() -> str:
    """The dataclasses of settings and the environment."""
    parts = [
        "# Settings",
        "Each setting is a field of a frozen dataclass; the same field is a keyword in Python and a flag of the "
        "command line (`max_jobs` is `--max-jobs`). What is left out is taken from the environment, then from the "
        "machine. `vivace info` prints what is in force.",
    ]
    titles = {Options: "Options of an answer", EngineConfig: "The engine", ServeConfig: "The server"}
    for kind, title in titles.items():
        meanings, hints = field_help(kind), get_type_hints(kind)
        rows = [
            (f"`{item.name}`", _kind(hints[item.name]), _default(item), meanings.get(item.name, ""))
            for item in fields(kind)
        ]
        parts += [f"## {title}: `vivace.{kind.__name__}`", table(("field", "type", "default", "meaning"), rows)]
    variables = [(f"`{item.name}`", item.meaning, item.default) for item in VARIABLES]
    parts += ["## Environment variables", table(("variable", "meaning", "without it"), variables)]
    parts.append("An unknown variable that begins with `VIVACE_` is an error that names the nearest known one.")
    return "\n\n".join(parts)


def errors_page() -> str:
    """The error tree, and what programs read of each error."""
    rows = [
        (f"`{kind.__name__}`", str(kind.status), f"`{kind.code}`", _first_paragraph(vars(kind).get("__doc__")))
        for kind in _tree(errors.VivaceError)
    ]
    return "\n\n".join(
        (
            "# Errors",
            "Every error has a `message` that says what came and what was expected, and a `hint` that says what to do.",
            _indented_as_code(errors.__doc__ or ""),
            table(("class", "HTTP status", "code", "its fields"), rows),
        )
    )


def techniques_page() -> str:
    """Every technique: its docstring, and the fields of its Config with what they accept."""
    parts = [
        "# Techniques",
        "One file each, by slot. A technique at its null value equals a run without it, bit for bit.",
    ]
    slots = {name.lower(): found for name, found in vars(techniques).items() if isinstance(found, Registry)}
    for slot, registry in slots.items():
        base = inspect.getmodule(registry.load(next(iter(registry))).__mro__[1])
        slot_base = sys.modules.get(f"vivace.techniques.{slot}.base", base)
        parts += [f"## {slot}", _paragraphs(slot_base.__doc__)]
        for name in registry:
            config = registry.load(name)
            module = sys.modules[config.__module__]
            rows = [
                (f"`{config.path(item.name)}`", _accepts(item.metadata["check"]), f"`{item.default}`")
                for item in fields(config)
            ]
            parts += [f"### {name}", _paragraphs(module.__doc__), f"Origin: {config.origin}. {_traits(config)}"]
            parts += [table(("field", "accepts", "null value"), rows)] if rows else []
    return "\n\n".join(parts)


def models_page() -> str:
    """The catalog and the tables of architectures."""
    catalog = Catalog()
    rows = [
        (
            f"`{entry.name}`" + (" (default)" if entry.name == catalog.default else ""),
            entry.title,
            entry.kind,
            size_text(entry.num_bytes),
            f"[{entry.licence}]({entry.licence_url})",
        )
        for entry in catalog.entries.values()
    ]
    parts = [
        "# Models",
        "## Short names",
        table(("name", "model", "kind", "size", "licence"), rows),
        "## Architectures",
        "Any model of these architectures can be given as a hub id, a folder or a .gguf file.",
    ]
    for registry in (models.ARCHITECTURES, models.MODEL_TYPES, models.GGUF_ARCHITECTURES):
        files = [(f"`{name}`", f"`{_file_of(registry[name])}`") for name in registry]
        parts += [table((registry.kind, "file"), files)]
    return "\n\n".join(parts)


def ops_page() -> str:
    """The menu of operations in its order."""
    tree = ast.parse(inspect.getsource(ops))
    menu = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Ops")
    parts = ["# Operations", _paragraphs(ops.__doc__)]
    for node in menu.body:
        if isinstance(node, ast.FunctionDef):
            signature = f"{node.name}({ast.unparse(node.args).removeprefix('self, ')}) -> {ast.unparse(node.returns)}"  # type: ignore[arg-type]
            parts += [f"## {node.name}", f"    {signature}", _paragraphs(ast.get_docstring(node))]
    parts.append("# Data that operations take")
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name != "Ops":
            parts += [f"## {node.name}", _indented_as_code(ast.get_docstring(node) or "")]
    return "\n\n".join(parts)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def _kind(hint: Any) -> str:
    """A type in words."""
    hint = get_args(hint)[0] if get_origin(hint) is not None and hasattr(hint, "__metadata__") else hint
    origin, inner = get_origin(hint), [item for item in get_args(hint) if item is not type(None)]
    if origin is Literal:
        return " or ".join(f"`{choice}`" for choice in inner)
    if isinstance(origin, type) and issubclass(origin, Mapping) and get_origin(inner[1]) is not None:
        return "a name, or names with their fields"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"{_kind(inner[0])} = {_kind(inner[1])}, any number of them"
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return f"{_kind(inner[0])}, any number of them"
    if origin is not None:
        return _kind(inner[-1])
    return {int: "whole number", float: "number", bool: "on or off", str: "text", Path: "path"}.get(
        hint, f"`{hint.__name__}`"
    )


def _default(item: Field[Any]) -> str:
    if item.default is MISSING:
        return "none" if item.name == "logit_bias" else "its own"
    return "none" if item.default in (None, ()) else f"`{item.default}`"


def _traits(config: Any) -> str:
    kind = "Exact" if config.is_exact else "Lossy"
    against = f" Excludes: {', '.join(config.conflicts)}." if config.conflicts else ""
    return f"{kind}; chosen per {config.scope}.{against}"


def _accepts(check: Any) -> str:
    return _first_paragraph(check.__doc__) if inspect.isfunction(check) else str(check)


def _tree(kind: type[errors.VivaceError]) -> list[type[errors.VivaceError]]:
    return [kind, *(found for child in kind.__subclasses__() for found in _tree(child))]


def _file_of(target: str) -> str:
    return target.partition(":")[0].removeprefix("vivace.").replace(".", "/") + ".py"


def _paragraphs(text: str | None) -> str:
    """A docstring as Markdown: its indented blocks are code already, angle brackets are no tags."""
    return inspect.cleandoc(text or "").replace("<|", "\\<|")


def _first_paragraph(text: str | None) -> str:
    return " ".join(inspect.cleandoc(text or "").partition("\n\n")[0].split())


def _indented_as_code(text: str) -> str:
    return f"```text\n{inspect.cleandoc(text)}\n```"


def main() -> int:
    TARGET.mkdir(parents=True, exist_ok=True)
    stale = []
    for name, text in pages().items():
        path = TARGET / name
        if not path.exists() or path.read_text() != text:
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(text)
    print(f"{'stale' if '--check' in sys.argv else 'written'}: {', '.join(stale) or 'none'}")
    return int("--check" in sys.argv and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
