"""The folder of downloaded models: laid out by name and digest, filled in one step, shared by processes.

    <cache>/models/<name>/<digest, 16 digits>/...      the files, as the loader reads them
    <cache>/models/<name>/<digest, 16 digits>.json     their record: origin, licence, digests
    <cache>/models/<name>/.staging-<key>/...           what is being downloaded, kept if interrupted
    <cache>/models/<name>/.lock                        held while a process downloads this name
    <cache>/digests/<digest of a path>.json            digest of a large local model, and what its files were then

A record is written last, so that a folder without one is not a model.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from vivace.errors import DownloadError
from vivace.weights.partfile import CHUNK_BYTES, Expected, file_matches
from vivace.weights.progress import Progress

REMEMBERED_BYTES = 32 << 20  # smaller models are hashed at each start
SETTLED_NS = 2_000_000_000  # after the last change of a file
DIGITS = 16  # of a digest in a folder name: enough to tell the versions of one model apart


@dataclass(frozen=True)
class FileRecord:
    """One file of a model: its path inside the folder, length and sha256 (hex)."""

    path: str
    num_bytes: int
    sha256: str

    @property
    def expected(self) -> Expected:
        return Expected(self.num_bytes, sha256=self.sha256)


@dataclass(frozen=True)
class Record:
    """What the cache knows of a model. `asked` lists the names that led to it (for the hub `org/name@revision:file`),
    `fetched_ns` when it was fetched, so that the newest answer for a moving name wins."""

    name: str
    kind: str
    origin: str
    licence: str
    files: tuple[FileRecord, ...]
    asked: tuple[str, ...]
    fetched_ns: int

    @property
    def digest(self) -> str:
        return folder_digest(self.files)

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)


@dataclass(frozen=True)
class ModelFiles:
    """A model on the disk. `path` is a weight file or a model folder, `kind` is generate, embed or "" if not known,
    `licence` is "" if nothing states it, `known_digest` is "" for files that were never hashed."""

    path: Path
    name: str
    kind: str
    origin: str
    licence: str
    known_digest: str = ""
    digests: Path | None = None  # folder where digests of local files are remembered

    @cached_property
    def digest(self) -> str:
        """sha256 (hex) of the file, or of the sorted list of a folder's paths and file digests."""
        return self.known_digest or _remembered_digest(self.path, self.digests)


class Cache:
    """The models under one folder; nothing is written before the first download."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def find(self, name: str, asked: str) -> ModelFiles | None:
        """The newest whole model that `asked` led to, or None."""
        found = [record for record in self._records(name) if asked in record.asked and self._is_whole(record)]
        return self._files(max(found, key=lambda record: record.fetched_ns)) if found else None

    def verify(self, name: str, asked: str) -> bool:
        """Whether all bytes of that model are as recorded; a damaged one is forgotten, so that it is fetched again."""
        for record in self._records(name):
            if asked in record.asked and not all(
                file_matches(self._folder(record) / file.path, file.expected) for file in record.files
            ):
                self._record_path(record).unlink()
                return False
        return True

    def records(self) -> list[Record]:
        """All whole models, by name."""
        models = self.root / "models"
        names = sorted(path.name for path in models.iterdir() if path.is_dir()) if models.is_dir() else []
        return [record for name in names for record in self._records(name) if self._is_whole(record)]

    def path(self, record: Record) -> Path:
        """What the loader opens: the only file if it is weights by itself, else the folder."""
        folder = self._folder(record)
        return folder / record.files[0].path if len(record.files) == 1 else folder

    def staging(self, name: str, key: str) -> Path:
        """Where a download of `name` collects its files; the same key finds what an interrupted one left."""
        return self._home(name) / f".staging-{key[:DIGITS]}"

    def install(self, staging: Path, record: Record) -> ModelFiles:
        """Move the files from `staging`/files into place and record them; the caller holds the lock of the name."""
        folder, record_path = self._folder(record), self._record_path(record)
        earlier = _read_record(record_path)
        asked = tuple(sorted({*record.asked, *(earlier.asked if earlier else ())}))
        if folder.exists():
            # Only reached when the old files were damaged or the name moved away and back: readers may still map them.
            old = staging / "replaced"
            shutil.rmtree(old, ignore_errors=True)
            os.replace(folder, old)
        os.replace(staging / "files", folder)
        _write_atomically(record_path, json.dumps({**asdict(record), "asked": asked}, indent=1))
        shutil.rmtree(staging, ignore_errors=True)
        return self._files(record)

    @contextmanager
    def lock(self, name: str, progress: Progress) -> Iterator[None]:
        """Hold the name, so that a second process waits for the first instead of downloading the same files."""
        home = self._home(name)
        try:
            home.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DownloadError(
                f"cannot create {home}: {error.strerror or error}",
                reason="disk",
                hint="set VIVACE_CACHE to a folder that may be written",
            ) from error
        lock = FileLock(home / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            progress.note(f"another process is downloading {name}: waiting for it")
            lock.acquire(poll_interval=0.2)
        try:
            yield
        finally:
            lock.release()

    def _files(self, record: Record) -> ModelFiles:
        return ModelFiles(self.path(record), record.name, record.kind, record.origin, record.licence, record.digest)

    def _home(self, name: str) -> Path:
        return self.root / "models" / name.replace("/", "--")

    def _folder(self, record: Record) -> Path:
        return self._home(record.name) / record.digest[:DIGITS]

    def _record_path(self, record: Record) -> Path:
        return self._folder(record).with_suffix(".json")

    def _records(self, name: str) -> list[Record]:
        found = (_read_record(path) for path in sorted(self._home(name).glob("*.json")))
        return [record for record in found if record is not None]

    def _is_whole(self, record: Record) -> bool:
        folder = self._folder(record)
        return all(_size(folder / file.path) == file.num_bytes for file in record.files)


def folder_digest(files: Sequence[FileRecord]) -> str:
    """The digest of a model: the sha256 of its only file, or of the sorted lines "<sha256>  <path>" of its files."""
    if len(files) == 1:
        return files[0].sha256
    lines = sorted(f"{file.sha256}  {file.path}\n" for file in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _remembered_digest(path: Path, folder: Path | None) -> str:
    """The digest of a local model; of a large one it is not computed again while its files are what they were."""
    stamp = [_stamp_of(file) for file in ([path] if path.is_file() else sorted(path.rglob("*")))]
    if folder is None or sum(entry[1] for entry in stamp) < REMEMBERED_BYTES:
        return _digest_of(path)
    place = folder / f"{hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:DIGITS]}.json"
    try:
        told = json.loads(place.read_text(encoding="utf-8"))
        if told["stamp"] == stamp:
            return str(told["digest"])
    except (OSError, ValueError, TypeError, KeyError):
        pass
    digest = _digest_of(path)
    # A file that has just been written may change again without a change of its times: it is not trusted yet.
    if max(entry[2] for entry in stamp) < time.time_ns() - SETTLED_NS:
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            _write_atomically(place, json.dumps({"digest": digest, "stamp": stamp}))
    return digest


def _stamp_of(path: Path) -> list[Any]:
    """What changes when a file does: path, size, times of contents and entry, and which file it is."""
    status = path.stat()
    return [str(path), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev]


def _digest_of(path: Path) -> str:
    if path.is_file():
        return _hash(path)
    files = [file for file in sorted(path.rglob("*")) if file.is_file()]
    return folder_digest([FileRecord(file.relative_to(path).as_posix(), 0, _hash(file)) for file in files])


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while data := stream.read(CHUNK_BYTES):
            digest.update(data)
    return digest.hexdigest()


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _read_record(path: Path) -> Record | None:
    """The record at `path`; None if there is none or it cannot be read, so that its model is fetched again."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        files = tuple(FileRecord(**file) for file in table.pop("files"))
        return Record(files=files, asked=tuple(table.pop("asked")), **table)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _write_atomically(path: Path, text: str) -> None:
    temporary = path.with_suffix(".json.new")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
