"""One lazy table from names to things: a name maps to `module:attribute`, imported when first asked for."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from vivace.errors import UnknownName, nearest


class Registry(Mapping[str, str]):
    """Names of one kind, such as sampling techniques. `load(name)` imports on first use.

    `kind` is the word used in errors; `targets` maps a registered name to "package.module:attribute".
    """

    def __init__(self, kind: str, targets: Mapping[str, str]) -> None:
        self.kind = kind
        self._targets = dict(targets)

    def load(self, name: str) -> Any:
        """Return the object registered as `name`; raises UnknownName with the nearest known name."""
        if name not in self._targets:
            raise UnknownName(f"unknown {self.kind} '{name}'", field=self.kind, hint=nearest(name, self._targets))
        module, _, attribute = self._targets[name].partition(":")
        return getattr(importlib.import_module(module), attribute)

    def __getitem__(self, name: str) -> str:
        return self._targets[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._targets)

    def __len__(self) -> int:
        return len(self._targets)
