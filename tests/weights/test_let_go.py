"""While a matrix is packed, the pages of its file that were read leave memory again."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

from vivace.kernels.layout import pack_panels, row_chunks, unpack_panels
from vivace.kernels.ops import LinearWeight, stored_weight
from vivace.kernels.rooms import FRESH_MEMORY, Room
from vivace.weights.files import open_weights
from vivace.weights.load import Weights
from vivace.weights.rename import Rename

SMAPS = Path("/proc/self/smaps")
pytestmark = pytest.mark.skipif(not SMAPS.exists(), reason="the system does not tell which pages are in memory")

OUTPUTS, INPUTS = 16384, 512  # 32 MB
SMALL = 5 << 20  # two huge pages, of which systems may map one for a single byte


def resident_bytes(path: Path) -> int:
    """Pages of a file in the memory of this process."""
    total, is_file = 0, False
    for line in SMAPS.read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            is_file = line.endswith(str(path))
        elif is_file and line.startswith("Rss:"):
            total += int(line.split()[1]) << 10
    return total


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[torch.dtype], tuple[Path, torch.Tensor]]:
    def save(dtype: torch.dtype) -> tuple[Path, torch.Tensor]:
        tensor = torch.randn(OUTPUTS, INPUTS).to(dtype)
        safetensors.torch.save_file({"w": tensor}, tmp_path / "model.safetensors")
        return tmp_path / "model.safetensors", tensor

    return save


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_more_than_a_stretch_of_the_file_stays(
    saved: Callable[[torch.dtype], tuple[Path, torch.Tensor]], dtype: torch.dtype
) -> None:
    path, tensor = saved(dtype)
    matrix = Weights(open_weights(path)).take_stored("w", (OUTPUTS, INPUTS))
    most = 0
    for first, last in row_chunks(matrix):
        matrix.plain()[first:last].sum()
        most = max(most, resident_bytes(path))
    assert 0 < most < tensor.nbytes / 3
    packed = pack_panels(stored_weight([matrix]))
    assert resident_bytes(path) < SMALL
    assert torch.equal(unpack_panels(packed).data, tensor.float())


def test_the_pages_of_reordered_rows_leave_at_once(saved: Callable[[torch.dtype], tuple[Path, torch.Tensor]]) -> None:
    path, _ = saved(torch.float32)
    rules = (Rename("q", "w", "unpermute_rope", by="num_heads"),)
    matrix = Weights(open_weights(path), rules, {"num_heads": 8}).take_stored("q", (OUTPUTS, INPUTS))
    assert resident_bytes(path) < SMALL
    assert matrix.origin.name == "w unpermute_rope"


def test_a_weight_is_packed_into_the_room_it_is_given(
    saved: Callable[[torch.dtype], tuple[Path, torch.Tensor]],
) -> None:
    path, tensor = saved(torch.float32)

    class Kept:
        """Gives the first room, filled, to whoever asks a second time."""

        def __init__(self) -> None:
            self.rooms: dict[str, Room] = {}

        def room(self, key: str, num_bytes: int) -> Room:
            if key in self.rooms:
                return Room(self.rooms[key].data, is_filled=True)
            return self.rooms.setdefault(key, FRESH_MEMORY.room(key, num_bytes))

    rooms, packed = Kept(), list[LinearWeight]()
    for _ in range(2):
        matrix = Weights(open_weights(path)).take_stored("w", (OUTPUTS, INPUTS))
        packed.append(pack_panels(stored_weight([matrix]), rooms))
        if len(packed) == 1:
            packed[0].data[0, 0, 0] = 7.0  # what is filled is not written again
    assert list(rooms.rooms) == [f"f32_panel16; w {OUTPUTS}x{INPUTS} torch.float32"]
    assert packed[1].data[0, 0, 0] == 7.0
    assert torch.equal(packed[1].data.view(-1)[1:], packed[0].data.view(-1)[1:])
    assert torch.equal(unpack_panels(packed[1]).data[1:], tensor[1:])
