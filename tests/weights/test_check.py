"""The check of weights finds every number that is not finite, and names tensor, row and column."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from tests.models.test_load import CONFIG, weights
from tests.weights.builders import gguf_bytes, gguf_tensor, write
from vivace.errors import WeightError
from vivace.kernels.select import resolve
from vivace.models.load import load_model
from vivace.weights.check import CHUNK_BYTES, check_finite
from vivace.weights.files import TensorFile, open_weights
from vivace.weights.gguf_types import TYPES, GgufType

PACKED = [kind for kind in TYPES.values() if kind.coding is not None]
ROWS, COLUMNS = 5, 512
BADLY_SCALED = {
    # The first byte of a float16 that is not finite, in a block: of the scale, and of the minimum if there is one.
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
}


def packed(tmp_path: Path, kind: GgufType, blocks: np.ndarray) -> TensorFile:
    tensor = gguf_tensor("w", (COLUMNS, ROWS), kind.code)
    return open_weights(write(tmp_path / "m.gguf", gguf_bytes(tensors=[tensor], data=blocks.tobytes())))


def blocks_of(kind: GgufType) -> np.ndarray:
    """Every byte 0x11: small finite scales, whatever stands where."""
    return np.full((ROWS * COLUMNS // kind.block_size, kind.block_bytes), 0x11, dtype=np.uint8)


@pytest.mark.parametrize("kind", PACKED, ids=lambda kind: kind.name)
def test_finite_blocks_pass(tmp_path: Path, kind: GgufType) -> None:
    file = packed(tmp_path, kind, blocks_of(kind))
    assert bool(file.read("w").isfinite().all())
    check_finite(file, "w")


@pytest.mark.parametrize(
    ("name", "byte"), [(kind.name, byte) for kind in PACKED for byte in BADLY_SCALED.get(kind.name, ())]
)
@pytest.mark.parametrize(("half", "word"), [(math.nan, "NaN"), (math.inf, "infinity"), (-math.inf, "infinity")])
def test_a_bad_scale_of_a_block_is_found(tmp_path: Path, name: str, byte: int, half: float, word: str) -> None:
    kind = next(kind for kind in PACKED if kind.name == name)
    blocks, per_row = blocks_of(kind), COLUMNS // kind.block_size
    blocks[3 * per_row + 1, byte : byte + 2] = np.array([half], dtype="<f2").view(np.uint8)
    first = kind.block_size
    with pytest.raises(WeightError) as caught:
        check_finite(packed(tmp_path, kind, blocks), "w")
    assert f"{word} in row 3, column {first} to {first + kind.block_size - 1}" in caught.value.message
    assert "'w' in m.gguf at byte" in caught.value.message


def test_a_power_of_two_that_overflows_is_found(tmp_path: Path) -> None:
    kind = next(kind for kind in PACKED if kind.name == "MXFP4")
    blocks = blocks_of(kind)
    blocks[18] = 255  # the largest exponent and, as code, the largest number
    with pytest.raises(WeightError, match="infinity in row 1"):
        check_finite(packed(tmp_path, kind, blocks), "w")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.float8_e5m2])
@pytest.mark.parametrize("index", [0, 1000, -1])
def test_a_plain_number_is_found_in_any_stretch(tmp_path: Path, dtype: torch.dtype, index: int) -> None:
    size = 2 * CHUNK_BYTES // dtype.itemsize + 96
    tensor = torch.ones(size // 32, 32).to(dtype)
    tensor.view(-1)[index] = math.nan
    safetensors.torch.save_file({"fine": torch.ones(3), "w": tensor}, tmp_path / "model.safetensors")
    file = open_weights(tmp_path)
    check_finite(file, "fine")
    row, column = divmod(index % tensor.numel(), 32)
    with pytest.raises(WeightError, match=rf"'w' .* holds 1 number that is not finite, .*row {row}, column {column}"):
        check_finite(file, "w")


def test_whole_numbers_and_empty_tensors_pass(tmp_path: Path) -> None:
    tensors = {"ints": torch.ones(4, dtype=torch.int32), "empty": torch.ones(0, 3), "scalar": torch.tensor(1.0)}
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    for name in tensors:
        check_finite(open_weights(tmp_path), name)


@pytest.mark.parametrize("name", sorted(weights()))
def test_a_model_that_is_checked_refuses_any_tensor_of_it(tmp_path: Path, name: str) -> None:
    tensors: dict[str, Any] = weights()
    tensors[name].view(-1)[-1] = math.inf
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    ops = resolve(choice="ref")
    load_model(tmp_path, ops)
    with pytest.raises(WeightError, match=f"'{name}'.*infinity"):
        load_model(tmp_path, ops, is_checked=True)
