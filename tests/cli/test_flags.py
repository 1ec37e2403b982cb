"""Flags are the fields of config dataclasses: name, type, default, help and value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal

import pytest
import typer
from typer.testing import CliRunner

from vivace.api.options import Options
from vivace.cli.flags import Given, field_help, find_flag, flags_of, parse_size, with_flags
from vivace.config import EngineConfig, ServeConfig
from vivace.errors import ConfigError, UnknownName


@dataclass(frozen=True)
class Oven:
    """How to bake.

    degrees      heat of the oven; without it
                 the dial decides
    mode, style  one of a few
    crust_bytes  a size
    """

    degrees: int | None = None
    mode: Literal["top", "bottom"] = "top"
    style: str = "plain"
    crust_bytes: int = 1024
    fan: bool = True
    dry: bool = False
    spices: str | Sequence[str] = ()
    doses: Mapping[int, float] = field(default_factory=dict)


def bake(*words: str) -> tuple[Given, str]:
    """What a command with the flags of Oven receives, and its help."""
    received: list[Given] = []

    @with_flags(oven=flags_of(Oven))
    def command(cake: str = "apple", *, oven: Given) -> None:
        received.append({"cake": cake, **oven})

    app = typer.Typer(add_completion=False)
    app.command()(command)
    result = CliRunner().invoke(app, list(words), env={"COLUMNS": "200"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return (received[0] if received else {}), result.stdout + result.stderr


def test_only_what_was_given_arrives_with_the_type_of_its_field() -> None:
    assert bake()[0] == {"cake": "apple"}
    given, _ = bake("--degrees", "220", "--mode", "bottom", "--no-fan", "--dry", "--crust-bytes", "2K")
    assert given == {"cake": "apple", "degrees": 220, "mode": "bottom", "fan": False, "dry": True, "crust_bytes": 2048}
    given, _ = bake("--spices", "salt", "--spices", "pepper", "--doses", "3=0.5", "--doses", "4=-1", "--cake", "plum")
    assert given == {"cake": "plum", "spices": ["salt", "pepper"], "doses": {3: 0.5, 4: -1.0}}
    Oven(**{name: value for name, value in given.items() if name != "cake"})


def test_help_comes_from_the_docstring_and_shows_the_default() -> None:
    meanings = field_help(Oven)
    assert meanings["degrees"] == "heat of the oven; without it the dial decides"
    assert meanings["mode"] == meanings["style"] == "one of a few"
    text = bake("--help")[1]
    assert "one of a few (default top)" in text
    assert "--no-fan" in text
    assert "--no-dry" not in text


def test_a_wrong_value_is_refused_by_name() -> None:
    assert "--mode" in bake("--mode", "left")[1]
    assert "--degrees" in bake("--degrees", "warm")[1]
    assert "'1X' is no size" in bake("--crust-bytes", "1X")[1]
    with pytest.raises(ConfigError, match=r"doses is 'x=1', expected ID=NUMBER"):
        bake("--doses", "x=1")


def test_an_unknown_flag_names_the_nearest() -> None:
    assert "--degrees" in bake("--degres", "3")[1]
    with pytest.raises(UnknownName) as caught:
        find_flag(flags_of(Oven), "stile")
    assert "style" in caught.value.hint


@pytest.mark.parametrize(("text", "size"), [("4096", 4096), ("512M", 512 << 20), ("2GiB", 2 << 30), ("1 kb", 1024)])
def test_sizes_are_read_in_powers_of_1024(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("kind", [EngineConfig, ServeConfig, Options])
def test_every_field_of_the_configs_is_explained(kind: type) -> None:
    explained = field_help(kind)
    missing = [item.name for item in fields(kind) if item.name not in explained and item.name != "engine"]
    assert not missing


def test_one_text_becomes_the_value_of_a_field() -> None:
    flags = {flag.name: flag for flag in flags_of(Options)}
    assert flags["temperature"].parse("0.7") == 0.7
    assert flags["top_k"].parse("40") == 40
    assert flags["ignore_eos"].parse("on") is True
    assert flags["stop"].parse("END") == ["END"]
    with pytest.raises(ConfigError, match="temperature is 'warm', expected a number"):
        flags["temperature"].parse("warm")
