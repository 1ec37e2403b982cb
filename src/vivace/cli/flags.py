"""Command-line flags from config dataclasses, so that a field is written once: name, type, default and meaning.

    @with_flags(engine=flags_of(EngineConfig))
    def serve(models: list[str], *, engine: Given) -> None:
        config = EngineConfig(**engine)

A field `max_length` becomes `--max-length`; its help is the line of the class's docstring that begins with its name.
The command receives what was given on the command line only, so that environment and defaults fill the rest.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer

from vivace.errors import ConfigError, UnknownName, nearest

Given = dict[str, Any]  # field name -> value, for the flags that were given

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d+)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_NAMED = re.compile(r"((?:\w+, )*\w+)\s+(\S.*)")


@dataclass(frozen=True)
class Flag:
    """One field as a flag. `kind` is what the command line parses, `convert` makes the field's value of it."""

    name: str
    kind: Any
    help: str
    default: str | None
    panel: str
    parser: Callable[[str], Any] | None = None
    metavar: str | None = None
    convert: Callable[[Any], Any] = lambda value: value

    @property
    def parameter(self) -> inspect.Parameter:
        """The flag as a parameter of a command; None means: not given."""
        declarations = [f"--{self.name.replace('_', '-')}"]
        is_on = self.kind is bool and self.default == "True"
        if is_on:
            declarations = [f"{declarations[0]}/--no-{declarations[0][2:]}"]
        option = typer.Option(
            *declarations,
            help=self.help if self.default is None else f"{self.help} (default {'on' if is_on else self.default})",
            show_default=False,
            rich_help_panel=self.panel,
            parser=self.parser,
            metavar=self.metavar,
        )
        annotation: Any = Annotated[self.kind | None, option]
        return inspect.Parameter(self.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)

    def parse(self, text: str) -> Any:
        """The field's value of one text, as /set of the chat gives it. Raises ConfigError."""
        kind = get_args(self.kind)[0] if get_origin(self.kind) is list else self.kind
        readers: dict[Any, Callable[[str], Any]] = {int: int, float: float, bool: _truth}
        read = self.parser or readers.get(kind, str)
        try:
            value = read(text)
        except (ValueError, typer.BadParameter):
            expected = {int: "a whole number", float: "a number", bool: "true or false"}.get(kind, "another value")
            raise ConfigError(f"{self.name} is '{text}', expected {expected}", hint=self.help) from None
        return self.convert([value] if get_origin(self.kind) is list else value)


def flags_of(kind: type, *, leave_out: Sequence[str] = (), panel: str = "Options") -> list[Flag]:
    """The flags of a dataclass, in its order; fields that are dataclasses themselves have none."""
    hints, meanings = get_type_hints(kind), field_help(kind)
    chosen = [item for item in fields(kind) if item.name not in leave_out and not is_dataclass(hints[item.name])]
    return [_flag(item, hints[item.name], meanings.get(item.name, ""), panel) for item in chosen]


def with_flags(**groups: Sequence[Flag]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace the parameter `name` of a command, for each `name=flags`, by those flags; it receives a Given."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def wrapper(**arguments: Any) -> None:
            for name, flags in groups.items():
                values = [(flag, arguments.pop(flag.name)) for flag in flags]
                arguments[name] = {flag.name: flag.convert(value) for flag, value in values if value is not None}
            command(**arguments)

        signature = inspect.signature(command, eval_str=True)
        kept = [parameter for name, parameter in signature.parameters.items() if name not in groups]
        added = [flag.parameter for flags in groups.values() for flag in flags]
        wrapper.__signature__ = signature.replace(parameters=[*kept, *added])  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in (*kept, *added)}
        return wrapper

    return decorate


def find_flag(flags: Sequence[Flag], name: str) -> Flag:
    """The flag of a field. Raises UnknownName with the nearest one."""
    for flag in flags:
        if flag.name == name.replace("-", "_"):
            return flag
    raise UnknownName(f"unknown option '{name}'", field=name, hint=nearest(name, [flag.name for flag in flags]))


def field_help(kind: type) -> dict[str, str]:
    """What the docstring of a dataclass says of each field: lines "name, name   meaning" and their continuations."""
    names = {item.name for item in fields(kind)}
    found: dict[str, str] = {}
    current: list[str] = []
    for line in inspect.cleandoc(kind.__doc__ or "").splitlines():
        match = _NAMED.fullmatch(line)
        listed = match[1].split(", ") if match else []
        if match and names.issuperset(listed):
            current = listed
            found.update(dict.fromkeys(listed, match[2]))
        elif line.startswith("  ") and current:
            found.update({name: f"{found[name]} {line.strip()}" for name in current})
        else:
            current = []
    return found


def parse_size(text: str) -> int:
    """Bytes of a text such as 4096, 512M or 2GiB (powers of 1024)."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(f"'{text}' is no size, expected a number of bytes such as 512M or 2G")
    return int(match[1]) * _UNITS[match[2].upper()]


def _flag(item: Field[Any], hint: Any, meaning: str, panel: str) -> Flag:
    has_default = item.default is not MISSING and item.default not in (None, ()) and item.default is not False
    many = item.default if isinstance(item.default, tuple) else (item.default,)
    default = ", ".join(str(value) for value in many) if has_default else None
    kind = _without_none(hint)
    if item.name.endswith("_bytes"):
        return Flag(item.name, int, meaning, default, panel, parser=parse_size, metavar="SIZE")
    origin = get_origin(kind)
    if isinstance(origin, type) and issubclass(origin, Mapping) and str in get_args(hint):
        return Flag(item.name, str, meaning, default, panel)  # by name: fields need Python or a body
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return Flag(item.name, list[str], meaning, default, panel, metavar="ID=NUMBER", convert=_pairs(item.name))
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return Flag(item.name, list[get_args(kind)[0]], meaning, default, panel)  # type: ignore[misc]
    assert kind in (int, float, str, bool) or origin is Literal, f"{item.name}: no flag for {kind}"
    return Flag(item.name, kind, meaning, default, panel)


def _without_none(hint: Any) -> Any:
    """The type itself of `T | None`, and the sequence of `T | Sequence[T]`."""
    if get_origin(hint) not in (Union, types.UnionType):
        return hint
    kinds = [kind for kind in get_args(hint) if kind is not type(None)]
    return next((kind for kind in kinds if get_origin(kind) not in (None, Literal)), kinds[0])


def _pairs(name: str) -> Callable[[list[str]], dict[int, float]]:
    def convert(texts: list[str]) -> dict[int, float]:
        pairs = {}
        for text in texts:
            key, _, number = text.partition("=")
            try:
                pairs[int(key)] = float(number)
            except ValueError:
                raise ConfigError(f"{name} is '{text}', expected ID=NUMBER", hint="such as 42=-100") from None
        return pairs

    return convert


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false", "on", "off", "yes", "no"):
        raise ValueError(text)
    return text.lower() in ("true", "on", "yes")
