"""A file that arrives in pieces: written as `.part`, verified as a whole, then moved into place in one step.

The part stays when anything interrupts the transfer, so that a later one goes on from there; it is removed only when
its bytes are known to be wrong.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from vivace.errors import DownloadError
from vivace.weights.progress import size_text

CHUNK_BYTES = 1 << 20
SPARE_BYTES = 1 << 20  # room for records and folder entries beside the files themselves


@dataclass(frozen=True)
class Expected:
    """What a file must be. Exactly one of the digests is set: `sha256` (hex), or `git_sha1`, the hex object name
    that git gives a blob, which is all that the hub states for small files."""

    num_bytes: int
    sha256: str = ""
    git_sha1: str = ""

    def __post_init__(self) -> None:
        assert bool(self.sha256) != bool(self.git_sha1), "one digest says what the file must be"


class Digests:
    """The running sha256 of a stream of known length and, where asked for, its git object name."""

    def __init__(self, expected: Expected) -> None:
        self._sha256 = hashlib.sha256()
        # git hashes a header with the length before the content; sha1 serves to compare with the hub's listing only.
        self._git = hashlib.sha1(b"blob %d\0" % expected.num_bytes, usedforsecurity=False)
        self._expected = expected

    def update(self, data: bytes) -> None:
        self._sha256.update(data)
        if self._expected.git_sha1:
            self._git.update(data)

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    def difference(self) -> str:
        """ "" when the stream is the expected one, else a sentence with both digests."""
        if self._expected.sha256:
            kind, came, wanted = "sha256", self.sha256, self._expected.sha256
        else:
            kind, came, wanted = "git object", self._git.hexdigest(), self._expected.git_sha1
        return "" if came == wanted else f"{kind} is {came}, expected {wanted}"


class PartFile:
    """A `.part` file that is being written; a context manager that closes it and leaves it on the disk.

    `num_bytes` counts what it holds, hashed and written; opening it reads what an earlier transfer left.
    """

    def __init__(self, path: Path, expected: Expected, label: str) -> None:
        self.path = path
        self.expected = expected
        self.label = label
        self.num_bytes = 0
        self._digests = Digests(expected)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._stream = path.open("a+b", buffering=0)  # unbuffered: a full disk shows at the write, not at the close
        try:
            self._read_what_is_there()
        except BaseException:
            self._stream.close()
            raise

    def __enter__(self) -> PartFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()

    @property
    def complete(self) -> bool:
        return self.num_bytes == self.expected.num_bytes

    def write(self, data: bytes) -> None:
        """Append `data`. Raises DownloadError if the file grows beyond its expected size or the disk is full."""
        if self.num_bytes + len(data) > self.expected.num_bytes:
            self.discard()
            raise DownloadError(
                f"{self.label}: more than the stated {self.expected.num_bytes} bytes came",
                reason="digest",
                hint="the source sends another file than it lists: try again later or take another source",
            )
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._stream.fileno(), rest) :]
        except OSError as error:
            raise _disk_error(error, self.path.parent, self.expected.num_bytes - self.num_bytes) from error
        self._digests.update(data)
        self.num_bytes += len(data)

    def restart(self) -> None:
        """Forget everything written so far."""
        self._stream.truncate(0)
        self.num_bytes = 0
        self._digests = Digests(self.expected)

    def discard(self) -> None:
        """Close and remove the file."""
        self._stream.close()
        self.path.unlink(missing_ok=True)

    def finish(self, target: Path) -> str:
        """Verify the whole file and move it to `target`; returns its sha256.

        A file that is not the expected one is removed and DownloadError names both digests."""
        difference = self._digests.difference()
        if not self.complete:
            difference = f"{self.num_bytes} bytes came, expected {self.expected.num_bytes}"
        if difference:
            self.discard()
            raise DownloadError(
                f"{self.label}: wrong content: {difference}; the bad file was removed",
                reason="digest",
                hint="try again; if it happens again, the source does not hold the file that was asked for",
            )
        try:
            os.fsync(self._stream.fileno())
            self._stream.close()
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(self.path, target)
        except OSError as error:
            raise _disk_error(error, target.parent, self.expected.num_bytes) from error
        return self._digests.sha256

    def _read_what_is_there(self) -> None:
        self._stream.seek(0)
        while data := self._stream.read(CHUNK_BYTES):
            self._digests.update(data)
            self.num_bytes += len(data)
        if self.num_bytes > self.expected.num_bytes:
            self.restart()


def require_space(folder: Path, num_bytes: int) -> None:
    """Raise DownloadError unless the disk that holds `folder` has room for `num_bytes` more."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < num_bytes + SPARE_BYTES:
        raise disk_full(folder, num_bytes + SPARE_BYTES, free)


def disk_full(folder: Path, needed_bytes: int, free_bytes: int) -> DownloadError:
    """The error for a disk without room: how much is needed, how much is free, where."""
    return DownloadError(
        f"the disk is full: {needed_bytes} bytes ({size_text(needed_bytes)}) are needed, "
        f"{free_bytes} bytes ({size_text(free_bytes)}) are free in {folder}",
        reason="disk",
        hint="free some space, or set VIVACE_CACHE to a folder on another disk; what has come so far is kept",
    )


def file_matches(path: Path, expected: Expected) -> str:
    """The sha256 of `path` if it is the expected file, else ""."""
    if not path.is_file() or path.stat().st_size != expected.num_bytes:
        return ""
    digests = Digests(expected)
    with path.open("rb") as stream:
        while data := stream.read(CHUNK_BYTES):
            digests.update(data)
    return "" if digests.difference() else digests.sha256


def _disk_error(error: OSError, folder: Path, needed_bytes: int) -> DownloadError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return disk_full(folder, needed_bytes, shutil.disk_usage(folder).free)
    return DownloadError(
        f"cannot write in {folder}: {error.strerror or error}",
        reason="disk",
        hint="check that the folder may be written, or set VIVACE_CACHE to another one",
    )
