"""The llama2.c reader: where each array lies, the configuration, and files whose size does not fit their numbers."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.weights.builders import llama2c_bytes, write
from vivace.errors import WeightError
from vivace.weights.files import open_weights
from vivace.weights.llama2c import LLAMA2C_RULES
from vivace.weights.load import Weights

SIZES = (16, 24, 2, 4, 2, 30, 8)  # dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len


def test_tensors_lie_where_run_c_expects_them(tmp_path: Path) -> None:
    data = llama2c_bytes(SIZES)
    file = open_weights(write(tmp_path / "m.bin", data))
    floats = np.frombuffer(data, "<f4", offset=28)
    # Walk the arrays as run.c's memory_map_weights does: stacked over layers, one kind after the other.
    kinds = [
        ("input_layernorm", (16,)),
        ("self_attn.q_proj", (16, 16)),
        ("self_attn.k_proj", (8, 16)),
        ("self_attn.v_proj", (8, 16)),
        ("self_attn.o_proj", (16, 16)),
        ("post_attention_layernorm", (16,)),
        ("mlp.gate_proj", (24, 16)),
        ("mlp.down_proj", (16, 24)),
        ("mlp.up_proj", (24, 16)),
    ]
    position = 30 * 16
    assert np.array_equal(file.read("model.embed_tokens.weight"), floats[:position].reshape(30, 16))
    for kind, shape in kinds:
        for layer in range(2):
            size = int(np.prod(shape))
            expected = floats[position : position + size].reshape(shape)
            assert np.array_equal(file.read(f"model.layers.{layer}.{kind}.weight"), expected), kind
            position += size
    assert np.array_equal(file.read("model.norm.weight"), floats[position : position + 16])
    assert len(file.tensors) == 2 + 2 * len(kinds)


def test_negative_vocabulary_marks_a_classifier_of_its_own(tmp_path: Path) -> None:
    data = llama2c_bytes((*SIZES[:5], -30, 8))
    file = open_weights(write(tmp_path / "m.bin", data))
    assert file.metadata["tie_word_embeddings"] is False
    assert file.metadata["vocab_size"] == 30
    expected = np.frombuffer(data[-30 * 16 * 4 :], "<f4").reshape(30, 16)
    assert np.array_equal(file.read("lm_head.weight"), expected)


def test_configuration_is_in_hugging_face_fields(tmp_path: Path) -> None:
    metadata = open_weights(write(tmp_path / "m.bin", llama2c_bytes(SIZES))).metadata
    assert metadata == {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 16, "intermediate_size": 24,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "vocab_size": 30,
        "max_position_embeddings": 8, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": True,
    }  # fmt: skip


def test_rules_reorder_query_and_key_rows_for_half_split_rotation(tmp_path: Path) -> None:
    file = open_weights(write(tmp_path / "m.bin", llama2c_bytes(SIZES)))
    weights = Weights(file, LLAMA2C_RULES, {"num_heads": 4, "num_kv_heads": 2})
    for name, heads in (("q_proj", 4), ("k_proj", 2)):
        name = f"model.layers.1.self_attn.{name}.weight"
        stored = file.read(name)
        rows = [head * 4 + row for head in range(heads) for row in (0, 2, 1, 3)]
        assert torch.equal(weights.take(name), stored[rows])


HOSTILE = {
    "too short": (b"\x10" * 27, "too few for a llama2.c checkpoint"),
    "zero layers": (struct.pack("<7i", 16, 24, 0, 4, 2, 30, 8), "byte 8: n_layers is 0"),
    "negative heads": (struct.pack("<7i", 16, 24, 2, -4, 2, 30, 8), "byte 12: n_heads is -4"),
    "smallest vocabulary": (struct.pack("<7i", 16, 24, 2, 4, 2, -(2**31), 8), "asks for"),
    "everything largest": (struct.pack("<7i", *[2**31 - 1] * 7), "cannot be split into rotary pairs"),
    "2^31 layers": (struct.pack("<7i", 16, 24, 2**31 - 1, 4, 2, 30, 8), "asks for"),
    "odd head size": (struct.pack("<7i", 12, 24, 2, 4, 2, 30, 8), "byte 12: 12 dimensions"),
    "heads that do not share": (struct.pack("<7i", 16, 24, 2, 4, 3, 30, 8), "byte 16: 4 heads cannot share 3"),
    "a byte short": (llama2c_bytes(SIZES)[:-1], "byte 0: .* asks for"),
    "a byte long": (llama2c_bytes(SIZES) + b"\0", "byte 0: .* asks for"),
    "later version": (struct.pack("<7i", 0x616B3432, 2, 0, 0, 0, 0, 0), "of version 2, only version 0"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_file_is_refused_with_its_place(case: str, tmp_path: Path) -> None:
    data, message = HOSTILE[case]
    with pytest.raises(WeightError, match=message):
        open_weights(write(tmp_path / "bad.bin", data))
