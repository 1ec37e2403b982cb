"""The tables of techniques by slot, and how a config becomes the technique itself.

The order of SAMPLING is the order in which filters are applied, whatever order a request names them in.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from vivace.errors import InvalidRequest, UnknownName, nearest
from vivace.registry import Registry
from vivace.techniques.base import TechniqueConfig

OFF = "off"  # the choice of no technique, where one is chosen by name


def _slot(slot: str, *names: str) -> Registry:
    return Registry(f"{slot} technique", {name: f"vivace.techniques.{slot}.{name}:Config" for name in names})


SAMPLING = _slot(
    "sampling",
    "logit_bias",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "min_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
)

POOLING = _slot(
    "pooling",
    "cls",
    "max",
    "mean",
    "mean_sqrt_len",
    "weightedmean",
    "lasttoken",
    "matryoshka",
    "normalize",
)

SPECULATION = _slot("speculation", "ngram")


def parse(slot: Registry, chosen: Mapping[str, Mapping[str, Any]]) -> dict[str, TechniqueConfig]:
    """Configs of the chosen techniques, in the order of the choice.

    Raises UnknownName for a technique or a field that does not exist, InvalidRequest for a value out of its range or
    two techniques that exclude each other.
    """
    configs: dict[str, TechniqueConfig] = {}
    for name, values in chosen.items():
        if name not in slot:
            raise UnknownName(f"unknown {slot.kind} '{name}'", field=name, hint=nearest(name, slot))
        if not isinstance(values, Mapping):
            raise InvalidRequest(f"{name} is {values!r}, expected a mapping of its fields", field=name)
        configs[name] = slot.load(name).parse(values)
    for name, config in configs.items():
        for other in config.conflicts:
            if other in configs and not configs[other].is_null and not config.is_null:
                raise InvalidRequest(f"{name} and {other} exclude each other", field=name, hint=f"leave {other} out")
    return configs


def with_usual(slot: Registry, chosen: str | Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """A choice as it travels: a technique by its name alone, OFF, or names with fields. What is left out of the fields
    gets the usual values of the technique, as whoever names it wants it on. Raises like `parse`."""
    named: Any = ({} if chosen == OFF else {chosen: {}}) if isinstance(chosen, str) else chosen
    if not isinstance(named, Mapping):
        hint = f"such as {next(iter(slot))!r} or {OFF!r}"
        raise InvalidRequest(f"{chosen!r} is no {slot.kind}, expected a name or names with fields", hint=hint)
    parse(slot, named)
    whole = {name: {**getattr(slot.load(name), "usual", {}), **values} for name, values in named.items()}
    parse(slot, whole)
    return whole


def make(config: TechniqueConfig, parts: Any) -> Any:
    """The technique itself, by the `make` that stands beside its Config. `parts` is what its slot's base.py says."""
    return importlib.import_module(type(config).__module__).make(config, parts)
