"""The table of short names, read from catalog.toml: which files a name stands for and where they can be had."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Any

from vivace.weights.cache import FileRecord, folder_digest


@dataclass(frozen=True)
class HubSource:
    """A repository on the hub whose files at `revision` are the entry's, under the same paths."""

    repo: str
    revision: str

    def __str__(self) -> str:
        return f"hub {self.repo}@{self.revision[:12]}"


@dataclass(frozen=True)
class WheelSource:
    """Packages of a package index. Either `folder` holds the entry's files in the only package, or `parts` names one
    path for each package, whose contents in order make up the entry's only file."""

    packages: tuple[str, ...]
    num_bytes: int
    folder: str = ""
    parts: tuple[str, ...] = ()

    def pieces(self, path: str) -> list[tuple[str, str]]:
        """Where the bytes of the entry's file `path` lie: (package==version, path in the package), in order."""
        if self.parts:
            return list(zip(self.packages, self.parts, strict=True))
        return [(self.packages[0], f"{self.folder}/{path}")]

    def __str__(self) -> str:
        return "packages " + ", ".join(self.packages) if len(self.packages) > 1 else f"package {self.packages[0]}"


@dataclass(frozen=True)
class Entry:
    """One short name. `kind` is what the model is for: generate or embed."""

    name: str
    title: str
    kind: str
    licence: str
    licence_url: str
    files: tuple[FileRecord, ...]
    sources: tuple[HubSource | WheelSource, ...]

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)

    @property
    def digest(self) -> str:
        return folder_digest(self.files)


class Catalog:
    """All entries by name, and the name that stands for "no model given"."""

    def __init__(self, text: str | None = None) -> None:
        self._text = text

    @cached_property
    def _table(self) -> dict[str, Any]:
        text = self._text
        if text is None:
            text = files("vivace.weights").joinpath("catalog.toml").read_text(encoding="utf-8")
        return tomllib.loads(text)

    @property
    def default(self) -> str:
        return str(self._table["default"])

    @cached_property
    def entries(self) -> dict[str, Entry]:
        return {name: _entry(name, table) for name, table in self._table["models"].items()}


def is_inside(path: str) -> bool:
    """Whether a path from a listing stays in its folder: no root, drive, backslash, ".." or control character."""
    pure = PurePosixPath(path)
    plain = path.isprintable() and not any(mark in path for mark in '\\:*?"<>|')
    return bool(path) and plain and not pure.is_absolute() and ".." not in pure.parts and len(path) < 256


def _entry(name: str, table: dict[str, Any]) -> Entry:
    records = tuple(FileRecord(file["path"], file["bytes"], file["sha256"]) for file in table["files"])
    assert all(is_inside(record.path) for record in records), name
    return Entry(
        name=name,
        title=table["title"],
        kind=table["kind"],
        licence=table["licence"],
        licence_url=table["licence_url"],
        files=records,
        sources=tuple(_source(source) for source in table["sources"]),
    )


def _source(table: dict[str, Any]) -> HubSource | WheelSource:
    if "hub" in table:
        return HubSource(table["hub"], table["revision"])
    return WheelSource(
        packages=tuple(table["wheel"]),
        num_bytes=table["wheel_bytes"],
        folder=table.get("folder", ""),
        parts=tuple(table.get("parts", ())),
    )
