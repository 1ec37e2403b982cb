"""Reader of llama2.c checkpoints (version 0): seven numbers, then float32 arrays in a fixed order.

Format: `export.py` (legacy export) and `run.c` of https://github.com/karpathy/llama2.c. It stacks the layers of each
kind of weight; here every layer is a tensor of its own under Hugging Face's Llama name. Query and key rows are left
in the file's order (interleaved rotary pairs): LLAMA2C_RULES has the transform that reorders them.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from vivace.errors import WeightError
from vivace.weights.files import broken
from vivace.weights.mapped import MappedFile, typed
from vivace.weights.rename import Rename

HEADER = struct.Struct("<7i")
FIELDS = ("dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "seq_len")
LATER_MAGIC = 0x616B3432  # first number of the versioned formats
NO_MAGIC = "the format has no magic number: the file may be damaged, or not be a llama2.c checkpoint at all"

_QUERY, _KEY = "model.layers.{i}.self_attn.q_proj.weight", "model.layers.{i}.self_attn.k_proj.weight"
LLAMA2C_RULES = (
    Rename(_QUERY, _QUERY, "unpermute_rope", by="num_heads"),
    Rename(_KEY, _KEY, "unpermute_rope", by="num_kv_heads"),
)


class Llama2cFile(MappedFile):
    """One llama2.c checkpoint; `metadata` is its configuration in the fields of a Llama config.json.

    The file's rotary tables are not tensors of the model and are skipped. The format has no magic number, so a file
    is accepted only if its size is exactly what its seven numbers ask for. Raises WeightError otherwise.
    """

    format = "llama2c"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        sizes, shared = self._read_header()
        position = HEADER.size
        for name, shape in _layout(sizes, shared):
            nbytes = 4 * math.prod(shape)
            if name:
                self._add(name, "F32", shape, position, nbytes)
            position += nbytes
        self.metadata = _llama_config(sizes, shared)

    def read(self, name: str, dtype: torch.dtype | None = torch.float32) -> torch.Tensor:
        """The tensor in `dtype`; float32, a view of the mapping, if that is None."""
        return typed(self.raw(name), torch.float32, self.tensors[name].shape).to(dtype or torch.float32)

    def _read_header(self) -> tuple[dict[str, int], bool]:
        size = len(self.data)
        if size < HEADER.size:
            raise broken(self.path, "byte 0", f"{size} bytes are too few for a llama2.c checkpoint", hint=NO_MAGIC)
        numbers = HEADER.unpack(self.data[: HEADER.size].tobytes())
        if numbers[0] == LATER_MAGIC:
            raise WeightError(
                f"{self.path.name} is a llama2.c checkpoint of version {numbers[1]}, only version 0 can be read",
                hint="export it again with --version 0",
            )
        sizes = dict(zip(FIELDS, numbers, strict=True))
        shared = sizes["vocab_size"] > 0  # a negative vocabulary marks a classifier of its own
        sizes["vocab_size"] = abs(sizes["vocab_size"])
        for position, field in enumerate(FIELDS):
            if sizes[field] <= 0:
                problem = f"{field} is {sizes[field]}, must be positive"
                raise broken(self.path, f"byte {4 * position}", problem, hint=NO_MAGIC)
        self._check_heads(sizes)
        expected = HEADER.size + 4 * _element_count(sizes, shared)
        if size != expected:
            raise broken(self.path, "byte 0", f"{size} bytes, but {sizes} asks for {expected}", hint=NO_MAGIC)
        return sizes, shared

    def _check_heads(self, sizes: dict[str, int]) -> None:
        dim, heads, kv_heads = sizes["dim"], sizes["n_heads"], sizes["n_kv_heads"]
        if dim % (2 * heads):
            raise broken(self.path, "byte 12", f"{dim} dimensions cannot be split into rotary pairs of {heads} heads")
        if heads % kv_heads:
            raise broken(self.path, "byte 16", f"{heads} heads cannot share {kv_heads} key-value heads")


def _blocks(sizes: dict[str, int], shared: bool) -> list[tuple[str, int, tuple[int, ...]]]:
    """(name, copies, shape) of each array in file order; `{i}` marks a stack of layers, "" what is skipped."""
    dim, hidden, layers = sizes["dim"], sizes["hidden_dim"], sizes["n_layers"]
    kv_dim = dim // sizes["n_heads"] * sizes["n_kv_heads"]
    rope_table = (sizes["seq_len"], dim // sizes["n_heads"] // 2)
    layer = "model.layers.{i}."
    blocks: list[tuple[str, int, tuple[int, ...]]] = [
        ("model.embed_tokens.weight", 1, (sizes["vocab_size"], dim)),
        (layer + "input_layernorm.weight", layers, (dim,)),
        (layer + "self_attn.q_proj.weight", layers, (dim, dim)),
        (layer + "self_attn.k_proj.weight", layers, (kv_dim, dim)),
        (layer + "self_attn.v_proj.weight", layers, (kv_dim, dim)),
        (layer + "self_attn.o_proj.weight", layers, (dim, dim)),
        (layer + "post_attention_layernorm.weight", layers, (dim,)),
        (layer + "mlp.gate_proj.weight", layers, (hidden, dim)),
        (layer + "mlp.down_proj.weight", layers, (dim, hidden)),
        (layer + "mlp.up_proj.weight", layers, (hidden, dim)),
        ("model.norm.weight", 1, (dim,)),
        ("", 2, rope_table),
    ]
    return blocks if shared else [*blocks, ("lm_head.weight", 1, (sizes["vocab_size"], dim))]


def _element_count(sizes: dict[str, int], shared: bool) -> int:
    return sum(copies * math.prod(shape) for _, copies, shape in _blocks(sizes, shared))


def _layout(sizes: dict[str, int], shared: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name, copies, shape in _blocks(sizes, shared):
        for index in range(copies):
            yield name.replace("{i}", str(index)), shape


def _llama_config(sizes: dict[str, int], shared: bool) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": sizes["dim"],
        "intermediate_size": sizes["hidden_dim"],
        "num_hidden_layers": sizes["n_layers"],
        "num_attention_heads": sizes["n_heads"],
        "num_key_value_heads": sizes["n_kv_heads"],
        "head_dim": sizes["dim"] // sizes["n_heads"],
        "vocab_size": sizes["vocab_size"],
        "max_position_embeddings": sizes["seq_len"],
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": shared,
    }
