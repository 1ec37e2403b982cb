"""The GGUF reader against files that the gguf package writes, and against files that nobody should write."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import quants

from tests.weights.builders import gguf_array, gguf_bytes, gguf_entry, gguf_string, gguf_tensor, write
from vivace.errors import WeightError
from vivace.weights.files import open_weights
from vivace.weights.gguf import GgufFile

Types = gguf.GGMLQuantizationType
U32, STRING, ARRAY = 4, 8, 9


def packed(shape: tuple[int, int], kind: gguf.GGMLQuantizationType, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    if kind.name.endswith("_K"):  # the package cannot quantize these: random codes with tame scales
        data = rng.integers(0, 256, (shape[0], shape[1] // block_size, block_bytes), dtype=np.uint8)
        half = np.float16(0.01).tobytes()
        for start in {"Q4_K": (0, 2), "Q6_K": (208,)}[kind.name]:
            data[:, :, start : start + 2] = np.frombuffer(half, np.uint8)
        return data.reshape(shape[0], -1)
    return quants.quantize(rng.standard_normal(shape).astype(np.float32), kind)


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    """A file with every required tensor type and every kind of metadata, written by the gguf package."""
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 3)
    writer.add_float32("llama.rope.freq_base", 10000.5)
    writer.add_bool("tokenizer.ggml.add_bos_token", True)
    writer.add_int64("test.i64", -(2**40))
    writer.add_uint64("test.u64", 2**63)
    writer.add_float64("test.f64", 1 / 3)
    writer.add_int8("test.i8", -5)
    writer.add_token_list(["<s>", "é", "日本", ""])
    writer.add_token_scores([0.0, -1.5, 2.25, 1e-3])
    writer.add_token_types([3, 1, 1, 6])
    for seed, name in enumerate(["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q6_K"]):
        writer.add_tensor(f"blk.0.{name}", packed((6, 512), Types[name], seed), raw_dtype=Types[name])
    writer.add_tensor("three.dims", np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_metadata_equals_what_the_peer_wrote(model_file: Path) -> None:
    metadata = open_weights(model_file).metadata
    assert metadata["general.architecture"] == "llama"
    assert metadata["llama.block_count"] == 3
    assert metadata["llama.rope.freq_base"] == 10000.5
    assert metadata["tokenizer.ggml.add_bos_token"] is True
    assert (metadata["test.i64"], metadata["test.u64"], metadata["test.i8"]) == (-(2**40), 2**63, -5)
    assert metadata["test.f64"] == 1 / 3
    assert metadata["tokenizer.ggml.tokens"] == ["<s>", "é", "日本", ""]
    assert metadata["tokenizer.ggml.scores"] == [float(np.float32(score)) for score in (0.0, -1.5, 2.25, 1e-3)]
    assert metadata["tokenizer.ggml.token_type"] == [3, 1, 1, 6]
    assert set(metadata) == {key for key in gguf.GGUFReader(model_file).fields if not key.startswith("GGUF.")}


def test_tensors_equal_the_peers_bit_for_bit(model_file: Path) -> None:
    file = open_weights(model_file)
    theirs = gguf.GGUFReader(model_file).tensors
    assert [tensor.name for tensor in theirs] == list(file.tensors)
    for tensor in theirs:
        info = file.tensors[tensor.name]
        assert (info.type, info.shape) == (tensor.tensor_type.name, tuple(reversed(tensor.shape.tolist())))
        assert file.raw(tensor.name).numpy().tobytes() == tensor.data.tobytes()
        expected = quants.dequantize(
            tensor.data.view(np.uint8) if info.type == "BF16" else tensor.data, tensor.tensor_type
        )
        ours = file.read(tensor.name)
        assert ours.dtype == torch.float32
        assert np.array_equal(ours.numpy().view(np.int32), expected.reshape(info.shape).view(np.int32)), tensor.name


def test_read_converts_or_keeps_the_stored_type(model_file: Path) -> None:
    file = open_weights(model_file)
    assert file.read("blk.0.BF16", None).dtype == torch.bfloat16
    assert file.read("blk.0.Q4_0", None).dtype == torch.float32
    half = file.read("blk.0.Q8_0", torch.float16)
    assert torch.equal(half, file.read("blk.0.Q8_0").to(torch.float16))


def test_metadata_and_tensors_outlive_close(model_file: Path) -> None:
    file = open_weights(model_file)
    mapped = file.raw("three.dims")
    expected = mapped.clone()
    file.close()
    assert torch.equal(mapped, expected)
    assert file.metadata["tokenizer.ggml.tokens"][2] == "日本"


def test_arrays_are_decoded_only_when_asked_for(tmp_path: Path) -> None:
    tokens = gguf_array(STRING, 2, gguf_string("fine") + gguf_string(b"\xff\xfe"))
    path = write(tmp_path / "lazy.gguf", gguf_bytes([gguf_entry("tokens", ARRAY, tokens)]))
    metadata = open_weights(path).metadata  # opening measures the array but does not decode it
    for _ in range(2):
        with pytest.raises(WeightError, match="a string of 'tokens' is not UTF-8"):
            metadata["tokens"]


def test_version_2_and_custom_alignment_are_read(tmp_path: Path) -> None:
    values = np.arange(8, dtype=np.float32)
    entry = gguf_entry("general.alignment", U32, struct.pack("<I", 64))
    head = gguf_bytes([entry], [gguf_tensor("a", [4]), gguf_tensor("b", [2, 2], offset=64)], version=2)
    data = values[:4].tobytes() + b"\0" * 48 + values[4:].tobytes()
    path = write(tmp_path / "v2.gguf", head + b"\0" * (-len(head) % 64) + data)
    file = open_weights(path)
    assert file.read("a").tolist() == [0, 1, 2, 3]
    assert file.read("b").tolist() == [[4, 5], [6, 7]]


def test_a_file_without_tensors_still_gives_its_vocabulary(tmp_path: Path) -> None:
    path = write(tmp_path / "vocab.gguf", gguf_bytes([gguf_entry("k", STRING, gguf_string("v"))]))
    file = open_weights(path)
    assert (dict(file.metadata), dict(file.tensors)) == ({"k": "v"}, {})


F32_DATA = b"\0" * 64
HUGE = 1 << 60
HOSTILE = {
    "no more than a magic": (b"GGUF", "byte 4: the file ends"),
    "version 1": (gguf_bytes(version=1), "GGUF version 1"),
    "big-endian": (gguf_bytes(version=3 << 24), "big-endian"),
    "2^60 tensors": (gguf_bytes(counts=(HUGE, 0)), f"{HUGE} tensors"),
    "2^60 metadata entries": (gguf_bytes(counts=(0, HUGE)), f"{HUGE} metadata entries"),
    "key of 2^63 bytes": (gguf_bytes([struct.pack("<Q", 1 << 63) + b"x" * 9]), "byte 24: a metadata key"),
    "key not UTF-8": (gguf_bytes([gguf_entry(b"\xff", U32, b"\0" * 4)]), "byte 24: a metadata key is not UTF-8"),
    "key twice": (gguf_bytes([gguf_entry("k", U32, b"\0" * 4)] * 2), "'k' is there twice"),
    "unknown metadata type": (gguf_bytes([gguf_entry("k", 13, b"\0" * 8)]), "'k' has the unknown type 13"),
    "string beyond the file": (gguf_bytes([gguf_entry("k", STRING, struct.pack("<Q", 10**9))]), "the value of 'k'"),
    "array of arrays": (
        gguf_bytes([gguf_entry("k", ARRAY, gguf_array(ARRAY, 1, gguf_array(U32, 0, b"")))]),
        "'k' is an array of arrays",
    ),
    "array of 2^61 numbers": (
        gguf_bytes([gguf_entry("k", ARRAY, gguf_array(U32, 1 << 61, b""))]),
        "elements of 'k' lead beyond",
    ),
    "array of 2^60 strings": (
        gguf_bytes([gguf_entry("k", ARRAY, gguf_array(STRING, HUGE, b""))]),
        "elements of 'k' lead beyond",
    ),
    "string in an array beyond the file": (
        gguf_bytes([gguf_entry("k", ARRAY, gguf_array(STRING, 1, struct.pack("<Q", 1 << 63)))]),
        "byte 49: a string",
    ),
    "strings that run out": (
        gguf_bytes([gguf_entry("k", ARRAY, gguf_array(STRING, 2, gguf_string("x" * 9)))])[:66],
        "in the middle of an array",
    ),
    "array of an unknown type": (gguf_bytes([gguf_entry("k", ARRAY, gguf_array(77, 1, b""))]), "unknown type 77"),
    "alignment 0": (
        gguf_bytes([gguf_entry("general.alignment", U32, b"\0" * 4)], [gguf_tensor("t", [4])], F32_DATA),
        "general.alignment: a power of two was expected, found 0",
    ),
    "alignment 48": (
        gguf_bytes([gguf_entry("general.alignment", U32, b"\x30\0\0\0")], [gguf_tensor("t", [4])], F32_DATA),
        "found 48",
    ),
    "alignment that is text": (
        gguf_bytes([gguf_entry("general.alignment", STRING, gguf_string("32"))], [gguf_tensor("t", [4])], F32_DATA),
        "found '32'",
    ),
    "tensor twice": (gguf_bytes((), [gguf_tensor("t", [4])] * 2, F32_DATA), "tensor 't' is there twice"),
    "tensor name not UTF-8": (gguf_bytes((), [gguf_tensor(b"\xc3", [4])], F32_DATA), "name of a tensor is not UTF-8"),
    "five dimensions": (gguf_bytes((), [gguf_tensor("t", [1] * 5)], F32_DATA), "'t' has 5 dimensions"),
    "dimension of 2^60": (gguf_bytes((), [gguf_tensor("t", [HUGE])], F32_DATA), "'t' has a dimension is"),
    "product that overflows": (
        gguf_bytes((), [gguf_tensor("t", [1 << 32, 1 << 32])], F32_DATA),
        "tensor 't': bytes .* lie beyond",
    ),
    "unknown tensor type": (gguf_bytes((), [gguf_tensor("t", [4], type_code=99)], F32_DATA), "'t' has the type 99"),
    "removed tensor type": (gguf_bytes((), [gguf_tensor("t", [32], type_code=4)], F32_DATA), "'t' has the type 4"),
    "row that is no whole block": (
        gguf_bytes((), [gguf_tensor("t", [16, 2], type_code=8)], F32_DATA),
        "rows of 16, Q8_0 needs a multiple of 32",
    ),
    "offset beyond the file": (gguf_bytes((), [gguf_tensor("t", [4], offset=1 << 40)], F32_DATA), "lie beyond"),
    "offset not aligned": (gguf_bytes((), [gguf_tensor("t", [4], offset=8)], F32_DATA), "not a multiple of 32"),
    "overlap": (
        gguf_bytes((), [gguf_tensor("a", [16]), gguf_tensor("b", [4], offset=32)], F32_DATA),
        "'b': overlaps 'a'",
    ),
    "data cut short": (gguf_bytes((), [gguf_tensor("t", [17])], F32_DATA), "tensor 't': bytes .* lie beyond"),
    "part of a split model": (
        gguf_bytes([gguf_entry("split.count", 2, struct.pack("<H", 4))]),
        "one of 4 parts of a split model",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_file_is_refused_with_its_place(case: str, tmp_path: Path) -> None:
    data, message = HOSTILE[case]
    path = write(tmp_path / "bad.gguf", data)
    with pytest.raises(WeightError, match=message) as caught:
        open_weights(path)
    assert "bad.gguf" in str(caught.value)


def test_every_truncation_is_refused(model_file: Path, tmp_path: Path) -> None:
    data = model_file.read_bytes()
    for size in range(0, len(data), 997):
        with pytest.raises(WeightError):
            GgufFile(write(tmp_path / "cut.gguf", data[:size]))
