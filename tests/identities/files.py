"""The trained tiny models in other weights: float32, 4 to 8 bits, and "K" types, for which they are made wider first.

Files are written where the caller says, the same bytes every time. Quantized ones are GGUF files, so that they take the
way of a published model: rows of q and k for neighbouring pairs, blocks of codes, fused matrices of different types.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.oracle.gguf_files import write_gguf

ASSETS = Path(__file__).resolve().parents[1] / "assets"
COPIES = (0.4, 0.3, 0.2, 0.1)  # how much of a weight each copy of a wider model's input carries

# The type of each matrix by a part of its name in the file; others have that of "".
TYPES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "Q4_1": {"": "Q4_1"},
        "mixed": {
            "blk.1.attn_v": "F16", "attn_q": "Q4_0", "attn_k": "Q5_1", "attn_v": "Q8_0", "attn_output": "MXFP4",
            "ffn_gate": "Q4_1", "ffn_up": "Q5_0", "": "Q8_0",
        },
        "K": {"attn_output": "Q8_0", "attn_v": "Q6_K", "ffn_down": "Q6_K", "token_embd": "Q6_K", "": "Q4_K"},
    }
)  # fmt: skip
WEIGHTS = ("bf16", "f32", *TYPES)


def make_weights(asset: str, weights: str, folder: Path) -> Path:
    """The model `asset` with one of WEIGHTS, in a folder or file below `folder`; bf16 is what the asset holds."""
    if weights == "bf16":
        return ASSETS / asset
    target = folder / f"{asset}-{weights}{'' if weights == 'f32' else '.gguf'}"
    if target.exists():
        return target
    tensors = {name: tensor.float() for name, tensor in load_file(ASSETS / asset / "model.safetensors").items()}
    config = json.loads((ASSETS / asset / "config.json").read_text())
    if weights == "f32":
        target.mkdir()
        shutil.copy(ASSETS / asset / "config.json", target)
        save_file(tensors, target / "model.safetensors")
        return target
    if weights == "K":
        config, tensors = widened(config, tensors)
    arch = "gemma3" if config["model_type"] == "gemma3_text" else "llama"
    peer = SimpleNamespace(config=SimpleNamespace(**config), state_dict=lambda: tensors)
    write_gguf(target, peer, arch, _metadata(config), {}, TYPES[weights])
    return target


def widened(config: dict[str, Any], tensors: dict[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The same function with a hidden and an inner size of 256, as K types need rows of 256.

    The hidden state stands there four times; each map reads a different share of each copy, and the shares sum to one.
    Further inner units are zeros. The head is tied to the embedding, so what it reads is made smaller by the last norm.
    """
    hidden, inner = config["hidden_size"] * len(COPIES), 256
    is_gemma = config["model_type"] == "gemma3_text"
    wide = {}
    for name, tensor in tensors.items():
        part = name.split(".")[-2]
        if part == "embed_tokens":
            tensor = tensor.repeat(1, len(COPIES)) / (len(COPIES) ** 0.5 if is_gemma else 1)
        elif part in ("q_norm", "k_norm"):
            pass
        elif "norm" in part:
            tensor = tensor.repeat(len(COPIES))
            if part == "norm":
                share = len(COPIES) ** -0.5 if is_gemma else 1 / len(COPIES)
                tensor = (tensor + 1) * share - 1 if is_gemma else tensor * share
        elif part in ("o_proj", "down_proj"):
            tensor = tensor.repeat(len(COPIES), 1)
        else:
            tensor = torch.cat([tensor * share for share in COPIES], 1)
        if part in ("gate_proj", "up_proj"):
            tensor = torch.cat([tensor, torch.zeros(inner - tensor.shape[0], hidden)])
        if part == "down_proj":
            tensor = torch.cat([tensor, torch.zeros(hidden, inner - tensor.shape[1])], 1)
        wide[name] = tensor
    return {**config, "hidden_size": hidden, "intermediate_size": inner}, wide


def _metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    ropes = config["rope_parameters"]
    if config["model_type"] != "gemma3_text":
        return {"rope.freq_base": ropes["rope_theta"], "rope.dimension_count": config["head_dim"]}
    return {
        "rope.freq_base": ropes["full_attention"]["rope_theta"],
        "rope.freq_base_swa": ropes["sliding_attention"]["rope_theta"],
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in config["layer_types"]],
    }
