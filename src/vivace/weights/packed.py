"""The rooms of one model's packed weights: read from the file of an earlier start, else filled and kept."""

from __future__ import annotations

import contextlib
import os

from torch import Tensor

from vivace import __version__, config
from vivace.kernels.rooms import HugePages, Room
from vivace.weights.cache import ModelFiles
from vivace.weights.packed_files import PAGE_BYTES, PackedFiles, read_table, write_packed

MIN_BYTES = 32 << 20  # smaller models are packed again: it takes hardly longer


def open_rooms(files: ModelFiles, layout: str, limit_bytes: int) -> PackedRooms:
    """The rooms of a model; `layout` says how its weights are packed, `limit_bytes` what all models may take."""
    identity = f"{files.digest} vivace {__version__} {layout}"
    return PackedRooms(PackedFiles(config.cache_dir() / "packed", limit_bytes), identity, files.name)


class PackedRooms:
    """Ask for every room, fill those that are empty, then `keep`.

    identity  what the contents depend on; see packed_files
    name      of the model, for people
    """

    def __init__(self, files: PackedFiles, identity: str, name: str) -> None:
        self._files = files
        self._path = files.path(identity)
        self._about = {"identity": identity, "name": name}
        table = read_table(self._path)
        is_ours = table.get("identity") == identity
        self._places: dict[str, list[int]] = table["rooms"] if is_ours else {}
        if is_ours:
            with contextlib.suppress(OSError):  # of a cache that may only be read
                os.utime(self._path)  # its last use
        self._fresh = HugePages()
        self._rooms: dict[str, Tensor] = {}
        self.num_made = 0  # rooms that were not there

    def room(self, key: str, num_bytes: int) -> Room:
        assert key not in self._rooms, f"{key} is asked for twice"
        room = self._fresh.room(key, num_bytes)
        first, length = self._places.get(key, (0, -1))
        if length == num_bytes and self._read(first, room.data):
            self._rooms[key] = room.data
            return Room(room.data, is_filled=True)
        if key:
            self._rooms[key] = room.data
            self.num_made += 1
        return room

    def keep(self) -> str:
        """Write the rooms for the next start, if any is new. Returns why that cannot be done, else ""."""
        num_bytes = sum(data.nbytes + PAGE_BYTES for data in self._rooms.values())
        if not self.num_made or num_bytes < MIN_BYTES:
            return ""
        try:
            problem = self._files.make_space(self._path, num_bytes)
            if not problem:
                write_packed(self._path, self._about, {key: data.numpy().data for key, data in self._rooms.items()})
        except OSError as error:
            problem = str(error)
        return problem

    def _read(self, first: int, data: Tensor) -> bool:
        """Fill `data` with the file's bytes from `first` on; False if they are not there any more."""
        # Read, not mapped: the pages of a file are small, and decoding from huge ones gains more than the copy costs.
        left = data.numpy().data
        try:
            with self._path.open("rb", buffering=0) as stream:
                stream.seek(first)
                while len(left):  # systems read two gigabytes at most at a time
                    count = stream.readinto(left)
                    if not count:
                        return False
                    left = left[count:]
        except OSError:
            return False
        return True
