"""Packed weights are kept, read at the next start, verified, replaced when damaged, and bounded in size."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from vivace.kernels.rooms import Rooms
from vivace.weights import packed
from vivace.weights.packed import PackedRooms
from vivace.weights.packed_files import PackedFiles, read_table

SIZES = {"a": 100, "b": 5000, "c": 0, "d": 4096}


@pytest.fixture(autouse=True)
def _keep_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "MIN_BYTES", 1)


def fill(rooms: Rooms, sizes: dict[str, int] = SIZES, seed: int = 0) -> dict[str, torch.Tensor]:
    """Ask for rooms and fill those that are empty with numbers of this seed."""
    draw, found = torch.Generator().manual_seed(seed), {}
    for key, size in sizes.items():
        room = rooms.room(key, size)
        if not room.is_filled:
            assert not room.data.any()
            room.data.copy_(torch.randint(0, 256, (size,), generator=draw, dtype=torch.uint8))
        found[key] = room.data
    return found


def start(files: PackedFiles, identity: str = "one", seed: int = 0) -> tuple[int, dict[str, torch.Tensor]]:
    """What one start does: how many rooms it had to fill, and what stands in them."""
    rooms = PackedRooms(files, identity, f"model {identity}")
    found = fill(rooms, seed=seed)
    assert rooms.keep() == ""
    return rooms.num_made, found


def test_the_second_start_finds_what_the_first_packed(tmp_path: Path) -> None:
    files = PackedFiles(tmp_path / "packed", 1 << 20)
    made, first = start(files)
    again, second = start(files, seed=1)
    assert (made, again) == (4, 0)
    assert all(torch.equal(first[key], second[key]) for key in SIZES)
    assert all(second[key].data_ptr() % 64 == 0 for key in SIZES)
    (record,) = files.records()
    assert record.name == "model one" and record.num_bytes == record.path.stat().st_size


def test_another_identity_finds_nothing(tmp_path: Path) -> None:
    files = PackedFiles(tmp_path, 1 << 20)
    start(files)
    assert start(files, "two")[0] == 4
    os.replace(files.path("one"), files.path("two"))  # a file under the wrong name
    assert start(files, "two")[0] == 4


@pytest.mark.parametrize("damage", ["cut", "longer", "empty", "head", "table", "magic"])
def test_a_damaged_file_is_replaced(tmp_path: Path, damage: str) -> None:
    files = PackedFiles(tmp_path, 1 << 20)
    _, first = start(files)
    path = files.path("one")
    data = bytearray(path.read_bytes())
    if damage in ("cut", "longer", "empty"):
        data = {"cut": data[:-1], "longer": data + b"\0", "empty": bytearray()}[damage]
    else:
        data[{"magic": 0, "head": 20, "table": 60}[damage]] ^= 1
    path.write_bytes(data)
    assert read_table(path) == {}
    assert [record.name for record in files.records()] == [""]
    made, second = start(files)
    assert made == 4 and all(torch.equal(first[key], second[key]) for key in SIZES)
    assert start(files)[0] == 0


def test_a_room_of_another_size_or_name_makes_a_new_file(tmp_path: Path) -> None:
    files = PackedFiles(tmp_path, 1 << 20)
    start(files)
    rooms = PackedRooms(files, "one", "m")
    fill(rooms, {"a": 100, "b": 5001, "e": 7})
    assert rooms.num_made == 2 and rooms.keep() == ""
    assert set(read_table(files.path("one"))["rooms"]) == {"a", "b", "e"}


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    files = PackedFiles(tmp_path, 50_000)  # two of three
    for age, identity in enumerate(("old", "new")):
        start(files, identity)
        os.utime(files.path(identity), (age, age))
    assert start(files, "old")[0] == 0  # used: now it is the newest
    start(files, "third")
    assert {record.name for record in files.records()} == {"model old", "model third"}


def test_what_cannot_be_kept_says_why_and_works_all_the_same(tmp_path: Path) -> None:
    rooms = PackedRooms(PackedFiles(tmp_path, 5000), "one", "m")
    fill(rooms)
    assert "packed_bytes allows 5000" in rooms.keep()
    (tmp_path / "file").touch()
    rooms = PackedRooms(PackedFiles(tmp_path / "file", 1 << 20), "one", "m")
    fill(rooms)
    assert "file" in rooms.keep()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_small_models_and_matrices_without_a_file_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rooms = PackedRooms(PackedFiles(tmp_path, 1 << 20), "one", "m")
    for _ in range(2):
        assert not rooms.room("", 50).is_filled  # no key, such as for a matrix made in memory
    assert rooms.keep() == ""
    monkeypatch.setattr(packed, "MIN_BYTES", 1 << 20)
    start(PackedFiles(tmp_path, 1 << 20))
    assert not list(tmp_path.iterdir())


def test_clearing_removes_all_while_one_is_in_use(tmp_path: Path) -> None:
    files = PackedFiles(tmp_path, 1 << 20)
    start(files)
    _, used = start(files)
    total = files.records()[0].num_bytes
    assert files.clear() == total
    assert not files.records()
    assert start(files)[0] == 4
    assert torch.equal(used["b"], start(files)[1]["b"])
