"""Published weights, read by us and by the peer libraries: same names, bytes and values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import safetensors
import torch
from gguf import quants

from vivace.weights.files import TensorFile, open_weights
from vivace.weights.gguf_types import TYPES

pytestmark = pytest.mark.real

MAX_ROWS = 2000  # of a tensor, for the peer dequantizes slowly


def assert_values_equal_the_peers(file: TensorFile) -> None:
    """The first tensor of each shape and type, bit for bit."""
    kinds = {kind.name: kind for kind in TYPES.values()}
    for info in {(info.type, info.shape): info for info in file.tensors.values()}.values():
        if info.type == "F32":
            continue
        rows = min(info.shape[0], MAX_ROWS)
        row_bytes = info.nbytes // info.shape[0]
        raw = file.raw(info.name)[: rows * row_bytes].reshape(rows, row_bytes).numpy()
        theirs = quants.dequantize(raw, gguf.GGMLQuantizationType(kinds[info.type].code))
        ours = file.read(info.name)[:rows].numpy()
        assert np.array_equal(ours.view(np.int32), theirs.view(np.int32)), info.name


def test_smollm2_equals_the_peers(real_model: Callable[[str], Path]) -> None:
    path = real_model("smollm2")
    file = open_weights(path)
    reader = gguf.GGUFReader(path)
    assert [tensor.name for tensor in reader.tensors] == list(file.tensors)
    for tensor in reader.tensors:
        info = file.tensors[tensor.name]
        assert (info.type, info.shape) == (tensor.tensor_type.name, tuple(reversed(tensor.shape.tolist())))
        assert np.array_equal(file.raw(tensor.name).numpy(), tensor.data.reshape(-1).view(np.uint8)), tensor.name
    for key in (
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.merges",
        "tokenizer.ggml.token_type",
        "tokenizer.chat_template",
    ):
        assert file.metadata[key] == reader.fields[key].contents(), key
    assert_values_equal_the_peers(file)


def test_gemma3_equals_the_peers(real_model: Callable[[str], Path]) -> None:
    file = open_weights(real_model("gemma3-270m"))
    assert {info.type for info in file.tensors.values()} == {"F32", "Q8_0", "Q5_0", "Q4_K", "Q6_K"}
    assert len(file.metadata["tokenizer.ggml.tokens"]) == len(file.metadata["tokenizer.ggml.scores"]) == 262144
    assert_values_equal_the_peers(file)


def test_minilm_equals_the_peers(real_model: Callable[[str], Path]) -> None:
    folder = real_model("minilm")
    file = open_weights(folder)
    with safetensors.safe_open(folder / "model.safetensors", "pt") as theirs:
        assert set(theirs.keys()) == set(file.tensors)
        assert file.metadata == theirs.metadata()
        for name in theirs.keys():  # noqa: SIM118 - not a dict
            assert torch.equal(file.read(name, None), theirs.get_tensor(name)), name


def test_stories260k_lies_where_its_header_says(test_data: Path) -> None:
    file = open_weights(test_data / "models" / "stories260K.bin")
    sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size")
    assert [file.metadata[size] for size in sizes] == [64, 5, 8, 4, 512]
    assert len(file.tensors) == 2 + 9 * 5
    for name in file.tensors:
        if "norm" in name:  # trained norm weights are positive on average: a shifted layout would put matrices here
            assert 0.1 < file.read(name).mean() < 5, name
