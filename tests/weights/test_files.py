"""`open_weights` tells formats apart by content, and says what to do about the ones it does not read."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import safetensors.torch
import torch

from tests.weights.builders import gguf_bytes, gguf_tensor, llama2c_bytes, write
from vivace.errors import WeightError
from vivace.weights.files import open_weights, shown

GGUF = gguf_bytes((), [gguf_tensor("t", [4])], b"\0" * 16)
SAFETENSORS = safetensors.torch.save({"t": torch.zeros(4)})
LLAMA2C = llama2c_bytes((16, 24, 2, 4, 2, 30, 8))


@pytest.mark.parametrize(
    ("name", "data", "format_name"),
    [
        ("a.gguf", GGUF, "gguf"),
        ("a.safetensors", SAFETENSORS, "safetensors"),
        ("a.bin", LLAMA2C, "llama2c"),
        ("a.bin", GGUF, "gguf"),
        ("a", SAFETENSORS, "safetensors"),
        ("a.gguf", SAFETENSORS, "safetensors"),
        # Header numbers that look like the first bytes of a pickle, or like a safetensors header at byte 8.
        ("pickle-like.bin", llama2c_bytes((640, 1, 1, 1, 1, 1, 1)), "llama2c"),
        ("json-like.bin", llama2c_bytes((2, 1, ord("{"), 1, 1, 1, 1)), "llama2c"),
    ],
)
def test_format_is_found_by_content(name: str, data: bytes, format_name: str, tmp_path: Path) -> None:
    assert open_weights(write(tmp_path / name, data)).format == format_name


@pytest.mark.parametrize("modern", [True, False])
def test_pickle_is_refused_with_the_way_to_convert_it(modern: bool, tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save({"w": torch.zeros(2)}, path, _use_new_zipfile_serialization=modern)
    for place in (path, tmp_path):
        with pytest.raises(WeightError, match=r"pytorch_model.bin is a pickle") as caught:
            open_weights(place)
        assert "save_file(torch.load('pytorch_model.bin', weights_only=True)" in caught.value.hint


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_bare_pickle_is_refused(protocol: int, tmp_path: Path) -> None:
    path = write(tmp_path / "x.pt", pickle.dumps({"w": [1.0]}, protocol=protocol))
    with pytest.raises(WeightError, match="is a pickle"):
        open_weights(path)


def test_folder_holds_one_model(tmp_path: Path) -> None:
    write(tmp_path / "one.gguf", GGUF)
    assert open_weights(tmp_path).format == "gguf"
    write(tmp_path / "two.gguf", GGUF)
    with pytest.raises(WeightError, match=r"holds 2 GGUF files: one.gguf, two.gguf"):
        open_weights(tmp_path)
    write(tmp_path / "model.safetensors", SAFETENSORS)
    assert open_weights(tmp_path).format == "safetensors"


def test_what_is_no_weight_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightError, match="no weights in"):
        open_weights(tmp_path)
    with pytest.raises(WeightError, match="no weight file at"):
        open_weights(tmp_path / "nothing.gguf")
    with pytest.raises(
        WeightError, match=r"README.md is not a weight file that can be read \(it begins with b'# Model '"
    ):
        open_weights(write(tmp_path / "README.md", b"# Model card"))
    with pytest.raises(WeightError, match=r"cannot read .*name too long"):
        open_weights(tmp_path / ("x" * 300))
    with pytest.raises(WeightError, match=r"x.gguf, byte 0: the file is empty"):
        open_weights(write(tmp_path / "x.gguf", b""))


def test_names_from_files_are_escaped_and_cut() -> None:
    assert shown("a\n\x1b[31m") == r"'a\n\x1b[31m'"
    assert len(shown("x" * 10_000)) <= 121
