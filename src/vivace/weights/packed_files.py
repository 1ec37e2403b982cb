"""The folder of packed weights that later starts read: its files, their tables, and their bounded size.

    <cache>/packed/<16 digits of the identity's sha256>.packed

A file is a head (magic, length and sha256 of the table), a table in JSON (identity, name of the model, length of the
file, place of each room), then the rooms, each at whole pages. The identity says what the contents depend on: digest of
the weights, versions of Vivace and of the layout. A file that is not as its table says counts as none, and the next
load replaces it. It is written beside its place and renamed when its bytes are on the disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGE_BYTES = 4096
SPARE_BYTES = 1 << 30  # of the disk, left to others
STALE_S = 24 * 3600.0  # an unfinished file this old belongs to nobody

_MAGIC = b"vivpack1"
_HEAD = struct.Struct("<8sQ32s")
_MAX_TABLE_BYTES = 64 << 20


@dataclass(frozen=True)
class PackedRecord:
    """One file: the model it was made of ("" for a damaged file), its size, and when it was last used."""

    path: Path
    name: str
    num_bytes: int
    used_ns: int


class PackedFiles:
    """The files in one folder, `limit_bytes` at most: what was not used for longest goes first."""

    def __init__(self, folder: Path, limit_bytes: int = 0) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes

    def path(self, identity: str) -> Path:
        return self.folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:16]}.packed"

    def records(self) -> list[PackedRecord]:
        """All files, the latest use last."""
        found = []
        for path in self.folder.glob("*.packed") if self.folder.is_dir() else ():
            status = path.stat()
            found.append(PackedRecord(path, read_table(path).get("name", ""), status.st_size, status.st_mtime_ns))
        return sorted(found, key=lambda record: record.used_ns)

    def clear(self) -> int:
        """Remove all files, and return their bytes. Whoever uses one now keeps it until its process ends."""
        records = self.records()
        for record in records:
            record.path.unlink(missing_ok=True)
        return sum(record.num_bytes for record in records)

    def make_space(self, path: Path, num_bytes: int) -> str:
        """Remove what was not used for longest until `num_bytes` fit at `path`. Returns why they cannot, else ""."""
        if num_bytes > self.limit_bytes:
            return f"they take {num_bytes} bytes, packed_bytes allows {self.limit_bytes}"
        self.folder.mkdir(parents=True, exist_ok=True)
        for part in self.folder.glob("*.part"):
            if part.stat().st_mtime + STALE_S < time.time():
                part.unlink(missing_ok=True)
        records = [record for record in self.records() if record.path != path]
        total = sum(record.num_bytes for record in records)
        while total + num_bytes > self.limit_bytes:
            oldest = records.pop(0)
            oldest.path.unlink(missing_ok=True)
            total -= oldest.num_bytes
        free = shutil.disk_usage(self.folder).free
        return "" if free >= num_bytes + SPARE_BYTES else f"only {free} bytes are free on the disk"


def read_table(path: Path) -> dict[str, Any]:
    """The table of a file that is as it says, else an empty one. rooms: key -> [first byte, bytes]."""
    try:
        with path.open("rb") as stream:
            magic, length, digest = _HEAD.unpack(stream.read(_HEAD.size))
            text = stream.read(length) if magic == _MAGIC and length <= _MAX_TABLE_BYTES else b""
            if hashlib.sha256(text).digest() != digest:
                return {}
            table: dict[str, Any] = json.loads(text)
            return table if table["num_bytes"] == os.fstat(stream.fileno()).st_size else {}
    except (OSError, struct.error, ValueError, KeyError):
        return {}


def write_packed(path: Path, about: Mapping[str, str], rooms: Mapping[str, memoryview]) -> None:
    """Write a file: `about` holds identity and name. Raises OSError, and leaves nothing behind then."""
    places, text = _placed(about, {key: data.nbytes for key, data in rooms.items()})
    descriptor, part = tempfile.mkstemp(suffix=".part", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(_HEAD.pack(_MAGIC, len(text), hashlib.sha256(text).digest()) + text)
            for key, data in rooms.items():
                stream.seek(places[key])
                stream.write(data)
            stream.truncate(_whole_pages(stream.tell()))
            stream.flush()
            os.fsync(stream.fileno())  # a name that lasts must not stand for bytes that are lost with the power
        os.replace(part, path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


def _placed(about: Mapping[str, str], sizes: Mapping[str, int]) -> tuple[dict[str, int], bytes]:
    """Where each room begins, and the table that says so."""
    longest = json.dumps({**about, "num_bytes": 0, "rooms": {key: [0, 0] for key in sizes}})
    start = _whole_pages(_HEAD.size + len(longest.encode()) + 40 * (len(sizes) + 1))  # 20 digits a number are enough
    places = dict(zip(sizes, _starts(start, sizes.values()), strict=False))
    end = _starts(start, sizes.values())[-1]
    listed = {key: [places[key], size] for key, size in sizes.items()}
    return places, json.dumps({**about, "num_bytes": end, "rooms": listed}).encode()


def _starts(start: int, sizes: Iterable[int]) -> list[int]:
    """Where rooms of these sizes begin, from `start` on, and where the last one ends."""
    found = [start]
    for size in sizes:
        found.append(_whole_pages(found[-1] + size))
    return found


def _whole_pages(num_bytes: int) -> int:
    return -(-num_bytes // PAGE_BYTES) * PAGE_BYTES
