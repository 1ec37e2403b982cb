"""Weight files built byte by byte, so that tests can put a wrong number anywhere."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


def safetensors_bytes(header: dict[str, Any] | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file from its header (as JSON text or an object) and data; `length` overrides the header's."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def gguf_string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def gguf_entry(key: str | bytes, type_code: int, value: bytes) -> bytes:
    return gguf_string(key) + struct.pack("<I", type_code) + value


def gguf_array(type_code: int, count: int, elements: bytes) -> bytes:
    return struct.pack("<IQ", type_code, count) + elements


def gguf_tensor(name: str | bytes, dims: Sequence[int], type_code: int = 0, offset: int = 0) -> bytes:
    """A tensor description; `dims` in file order, innermost first."""
    packed_dims = b"".join(struct.pack("<Q", dim) for dim in dims)
    return gguf_string(name) + struct.pack("<I", len(dims)) + packed_dims + struct.pack("<IQ", type_code, offset)


def gguf_bytes(
    entries: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    """A GGUF file; `counts` overrides the numbers of tensors and entries in its header."""
    tensor_count, entry_count = counts or (len(tensors), len(entries))
    head = b"GGUF" + struct.pack("<IQQ", version, tensor_count, entry_count) + b"".join(entries) + b"".join(tensors)
    return head + b"\0" * (-len(head) % 32) + data


def llama2c_bytes(sizes: Sequence[int], seed: int = 0) -> bytes:
    """A llama2.c checkpoint of random weights: dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len."""
    dim, hidden, layers, heads, kv_heads, vocab, length = sizes
    kv_dim = dim // heads * kv_heads
    per_layer = 2 * dim + 2 * dim * dim + 2 * kv_dim * dim + 3 * hidden * dim
    count = abs(vocab) * dim + layers * per_layer + dim + length * (dim // heads)
    if vocab < 0:
        count += -vocab * dim
    weights = np.random.default_rng(seed).standard_normal(count).astype("<f4")
    return struct.pack("<7i", *sizes) + weights.tobytes()


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path
