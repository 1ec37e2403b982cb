"""Writes tiny models of the peer library as GGUF files by llama.cpp's conventions, with the gguf package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import torch
from gguf import quants
from torch import Tensor

from tests.oracle.peers import llama_cpp_name, permuted
from tests.weights.k_blocks import q4_k, q6_k

_ALL_FLOAT: Mapping[str, str] = MappingProxyType({"": "F32"})


def write_gguf(
    path: Path,
    peer: Any,
    arch: str,
    extra: dict[str, Any],
    tensors: dict[str, Tensor],
    types: Mapping[str, str] = _ALL_FLOAT,
) -> None:
    """The peer's weights, with `extra` metadata keys of the architecture and further `tensors`.

    types  part of a matrix's name -> its type; the first that is in the name counts. Vectors are float32.
    """
    config = peer.config
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_token_list([f"<{index}>" for index in range(config.vocab_size)])
    for key, value in extra.items():
        _add(writer, f"{arch}.{key}", value)
    for name, tensor in {**_converted(peer, arch), **tensors}.items():
        kind = next(kind for part, kind in types.items() if part in name) if tensor.dim() > 1 else "F32"
        raw_dtype = None if kind in ("F32", "F16") else gguf.GGMLQuantizationType[kind]
        writer.add_tensor(name, _stored(tensor, kind), raw_dtype=raw_dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama3_factors(peer: Any) -> Tensor:
    """llama.cpp's rope_freqs.weight: by how much each frequency is divided."""
    plain = 1.0 / peer.config.rope_parameters["rope_theta"] ** (
        torch.arange(0, peer.config.head_dim, 2, dtype=torch.float32) / peer.config.head_dim
    )
    factors: Tensor = plain / peer.model.rotary_emb.inv_freq
    return factors


def _converted(peer: Any, arch: str) -> dict[str, Tensor]:
    config, found = peer.config, {}
    for name, tensor in peer.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if arch == "gemma3" and "norm" in name:
            tensor = tensor + 1
        if arch == "llama" and "q_proj" in name:
            tensor = permuted(tensor, config.num_attention_heads)
        if arch == "llama" and "k_proj" in name:
            tensor = permuted(tensor, config.num_key_value_heads)
        found[llama_cpp_name(name, is_gemma=arch == "gemma3")] = tensor
    return found


def _stored(tensor: Tensor, kind: str) -> Any:
    if kind in ("Q4_K", "Q6_K"):
        return {"Q4_K": q4_k, "Q6_K": q6_k}[kind](tensor).numpy()
    values = tensor.contiguous().numpy()
    return values if kind == "F32" else quants.quantize(values, gguf.GGMLQuantizationType[kind])


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    else:
        writer.add_float32(key, value)
