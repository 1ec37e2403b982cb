"""The safetensors reader, whole and in shards, against the safetensors package and against hostile files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch

from tests.weights.builders import safetensors_bytes, write
from vivace.errors import WeightError
from vivace.weights.files import open_weights
from vivace.weights.safetensors import DTYPES, SafetensorsFile


def random_tensors() -> dict[str, torch.Tensor]:
    """One tensor of every type with random bits (NaN and infinities included), and the odd shapes."""
    generator = torch.Generator().manual_seed(1)
    tensors = {}
    for name, dtype in DTYPES.items():
        raw = torch.randint(0, 256, (3, 5 * dtype.itemsize), dtype=torch.uint8, generator=generator)
        tensors[f"of.{name}"] = raw.ne(0) if dtype == torch.bool else raw.view(dtype)
    return {**tensors, "scalar": torch.tensor(2.5), "empty": torch.zeros(0, 4), "ünïcode ✓": torch.ones(1)}


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file(random_tensors(), path, metadata={"format": "pt"})
    return path


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        one.shape == other.shape
        and one.dtype == other.dtype
        and (
            one.contiguous().reshape(-1).view(torch.uint8).tolist()
            == other.contiguous().reshape(-1).view(torch.uint8).tolist()
        )
    )


def test_every_type_is_read_as_it_was_written(model_file: Path) -> None:
    file = open_weights(model_file)
    written = random_tensors()
    assert file.tensors.keys() == written.keys()
    assert file.metadata == {"format": "pt"}
    for name, tensor in written.items():
        assert file.tensors[name].shape == tuple(tensor.shape)
        assert same_bits(file.read(name, None), tensor), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_16_bit_number_converts_exactly(dtype: torch.dtype, tmp_path: Path) -> None:
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    safetensors.torch.save_file({"all": numbers}, tmp_path / "all.safetensors")
    read = open_weights(tmp_path / "all.safetensors").read("all")
    assert read.dtype == torch.float32
    if dtype == torch.bfloat16:  # the float32 with the same upper half
        expected = torch.from_numpy((numbers.view(torch.int16).int() << 16).numpy()).view(torch.float32)
    else:
        expected = torch.from_numpy(numbers.numpy().astype("float32"))
    assert torch.equal(read.nan_to_num(nan=7.0), expected.nan_to_num(nan=7.0))
    assert torch.equal(read.to(dtype).nan_to_num(), numbers.nan_to_num())


def test_data_at_odd_addresses_is_read(tmp_path: Path) -> None:
    header = {
        "byte": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "word": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]},
    }
    data = b"\x07" + torch.tensor([1.5, -2.0]).numpy().tobytes()
    for padding in range(4):
        text = json.dumps(header).encode() + b" " * padding
        path = write(tmp_path / f"odd{padding}.safetensors", safetensors_bytes(text, data))
        assert open_weights(path).read("word").tolist() == [1.5, -2.0]


def test_writing_to_a_read_tensor_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    safetensors.torch.save_file({"w": torch.ones(4)}, path)
    before = path.read_bytes()
    open_weights(path).read("w").zero_()
    assert path.read_bytes() == before


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


HUGE = 1 << 60
EIGHT = b"\0" * 8
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", "byte 0: the file is empty"),
    "seven bytes": (b"\0" * 7, "too few"),
    "header beyond the file": (safetensors_bytes({}, length=50), "a header of 50 bytes, but the file has 10"),
    "header of 2^64-1 bytes": (safetensors_bytes({}, length=2**64 - 1), "a header of"),
    "header not UTF-8": (safetensors_bytes(b'{"\xff": 1}'), "the header at byte 8: not UTF-8"),
    "header not JSON": (safetensors_bytes(b'{"a": '), "not JSON"),
    "header a list": (safetensors_bytes(b"[]"), "a JSON object was expected"),
    "deep JSON": (safetensors_bytes(b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"), "nested too deep"),
    "deep objects": (safetensors_bytes(b'{"a":' * 200_000 + b"1" + b"}" * 200_000), "nested too deep"),
    "number of 10,000 digits": (safetensors_bytes(b'{"a": ' + b"9" * 10_000 + b"}"), "not JSON"),
    "name twice": (safetensors_bytes(b'{"a": 1, "b": 2, "a": 3}'), "the name 'a' is there twice"),
    "key twice in an entry": (
        safetensors_bytes(b'{"a": {"dtype": "F32", "dtype": "F16", "shape": [], "data_offsets": [0, 4]}}', b"\0" * 4),
        "the name 'dtype' is there twice",
    ),
    "name with half a surrogate": (
        safetensors_bytes(b'{"\\ud800": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}', EIGHT),
        "surrogate",
    ),
    "entry a number": (safetensors_bytes({"a": 1}), "tensor 'a': dtype, shape and data_offsets were expected"),
    "entry with a stranger": (safetensors_bytes({"a": {**entry(), "x": 1}}, EIGHT), "tensor 'a': dtype, shape"),
    "unknown type": (safetensors_bytes({"a": entry("F33")}, EIGHT), "unknown type 'F33'"),
    "type a list": (safetensors_bytes({"a": entry([])}, EIGHT), "unknown type"),
    "shape with a negative": (safetensors_bytes({"a": entry(shape=[-2])}, EIGHT), "whole numbers, found"),
    "shape with a float": (safetensors_bytes({"a": entry(shape=[2.0])}, EIGHT), "whole numbers, found"),
    "shape with a bool": (safetensors_bytes({"a": entry(shape=[True, 2])}, EIGHT), "whole numbers, found"),
    "shape a text": (safetensors_bytes({"a": entry(shape="2")}, EIGHT), "whole numbers, found"),
    "shape of 2^60": (safetensors_bytes({"a": entry(shape=[HUGE])}, EIGHT), "outside 0..2"),
    "shape of zero times 2^70": (safetensors_bytes({"a": entry(shape=[0, 2**70], offsets=[0, 0])}), "outside 0..2"),
    "product that overflows": (safetensors_bytes({"a": entry(shape=[2**32, 2**32])}, EIGHT), "needs .* bytes"),
    "hundred dimensions": (safetensors_bytes({"a": entry(shape=[1] * 100)}, EIGHT), "100 dimensions"),
    "size unlike the range": (safetensors_bytes({"a": entry(shape=[3])}, EIGHT), "needs 12 bytes, the range has 8"),
    "range backwards": (safetensors_bytes({"a": entry(offsets=[8, 0])}, EIGHT), "data_offsets must be"),
    "range negative": (safetensors_bytes({"a": entry(offsets=[-8, 0])}, EIGHT), "data_offsets must be"),
    "range of three": (safetensors_bytes({"a": entry(offsets=[0, 4, 8])}, EIGHT), "data_offsets must be"),
    "range beyond the file": (safetensors_bytes({"a": entry(offsets=[HUGE, HUGE + 8])}, EIGHT), "lie beyond"),
    "overlap": (safetensors_bytes({"a": entry(), "b": entry(offsets=[4, 12])}, b"\0" * 12), "'b': overlaps 'a'"),
    "same range twice": (safetensors_bytes({"a": entry(), "b": entry()}, EIGHT), "overlaps"),
    "gap": (safetensors_bytes({"a": entry(offsets=[4, 12])}, b"\0" * 12), "12 bytes of data, but the tensors"),
    "bytes left over": (safetensors_bytes({"a": entry()}, EIGHT + b"x"), "9 bytes of data, but the tensors"),
    "data cut short": (safetensors_bytes({"a": entry()}, EIGHT[:7]), "lie beyond"),
    "metadata a list": (safetensors_bytes({"__metadata__": []}), "__metadata__ must map strings"),
    "metadata with a number": (safetensors_bytes({"__metadata__": {"a": 1}}), "__metadata__ must map strings"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_file_is_refused_with_its_place(case: str, tmp_path: Path) -> None:
    data, message = HOSTILE[case]
    with pytest.raises(WeightError, match=message) as caught:
        SafetensorsFile(write(tmp_path / "bad.safetensors", data))
    assert "bad.safetensors" in str(caught.value)
    assert caught.value.message.isprintable()


@pytest.mark.parametrize("depth", [10, 100, *range(800, 1000, 10)])
def test_nesting_near_the_limit_of_the_parser_is_refused_too(depth: int, tmp_path: Path) -> None:
    data = safetensors_bytes(b'{"a":' + b"[" * depth + b"]" * depth + b"}")
    with pytest.raises(WeightError, match=r"nested|dtype, shape and data_offsets were expected"):
        SafetensorsFile(write(tmp_path / "deep.safetensors", data))


def write_shards(folder: Path, weight_map: dict[str, Any] | None = None) -> dict[str, torch.Tensor]:
    """A model in two shards with its index; `weight_map` replaces the honest one."""
    tensors = {f"layer.{i}.weight": torch.full((2, 3), float(i)) for i in range(4)}
    names = [f"model-0000{part}-of-00002.safetensors" for part in (1, 2)]
    honest = {name: names[i // 2] for i, name in enumerate(tensors)}
    for shard in names:
        held = {name: tensors[name] for name in tensors if honest[name] == shard}
        safetensors.torch.save_file(held, folder / shard, metadata={"format": "pt"})
    index = {"metadata": {"total_size": 96}, "weight_map": honest if weight_map is None else weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return tensors


def test_shards_are_one_file(tmp_path: Path) -> None:
    tensors = write_shards(tmp_path)
    file = open_weights(tmp_path)
    assert (file.format, file.metadata) == ("safetensors", {"format": "pt"})
    assert file.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(file.read(name), tensor)
        assert file.raw(name).numpy().tobytes() == tensor.numpy().tobytes()
    assert open_weights(tmp_path / "model.safetensors.index.json").tensors.keys() == tensors.keys()


ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
HONEST = {"layer.0.weight": ONE, "layer.1.weight": ONE, "layer.2.weight": TWO, "layer.3.weight": TWO}
BAD_INDEXES: dict[str, tuple[Any, str]] = {
    "parent folder": ({**HONEST, "layer.0.weight": f"../{ONE}"}, "'layer.0.weight': a file name was expected"),
    "absolute": ({**HONEST, "layer.0.weight": "/etc/passwd.safetensors"}, "a file name was expected"),
    "backslash": ({**HONEST, "layer.0.weight": "..\\x.safetensors"}, "a file name was expected"),
    "other kind": ({**HONEST, "layer.0.weight": "pytorch_model.bin"}, "a file name was expected"),
    "a number": ({**HONEST, "layer.0.weight": 1}, "a file name was expected"),
    "no shard of that name": ({**HONEST, "layer.0.weight": "gone.safetensors"}, "'gone.safetensors', which is not in"),
    "tensor nowhere": ({**HONEST, "extra": TWO}, "'extra': is not in model-00002"),
    "tensor in the wrong shard": ({**HONEST, "layer.0.weight": TWO}, "'layer.0.weight': is in model-00001"),
    "tensor left out": (
        {name: shard for name, shard in HONEST.items() if name != "layer.3.weight"},
        "the index puts it nowhere",
    ),
    "no map": ([], "weight_map: a map from tensors to files"),
    "empty map": ({}, "weight_map: a map from tensors to files"),
}


@pytest.mark.parametrize("case", BAD_INDEXES)
def test_bad_index_is_refused(case: str, tmp_path: Path) -> None:
    weight_map, message = BAD_INDEXES[case]
    write_shards(tmp_path, weight_map)
    with pytest.raises(WeightError, match=message):
        open_weights(tmp_path)


def test_index_that_names_a_tensor_twice_is_refused(tmp_path: Path) -> None:
    write_shards(tmp_path)
    index = f'{{"weight_map": {{"layer.0.weight": "{ONE}", "layer.0.weight": "{TWO}"}}}}'
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(WeightError, match=r"'layer.0.weight' is there twice"):
        open_weights(tmp_path)
