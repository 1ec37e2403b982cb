"""The peer library's models for comparisons: random ones whose every feature bites, and real ones from GGUF weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import torch
from torch import Tensor, nn

from vivace.weights.files import open_weights

Namer = Callable[[str], str]


def redraw(model: nn.Module, seed: int, spread: float = 0.6) -> None:
    """Draw every parameter again, wide: norms and biases too, so that no feature is the identity.

    Matrices keep about unit gain times `spread`, vectors (norms, biases) vary by `spread` around where they stood.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(noise * (1.5 * spread / parameter.shape[-1] ** 0.5))
            else:
                parameter.add_(noise * spread)


def peer_scores(model: Any, ids: list[int]) -> Tensor:
    """Scores (len(ids), vocab) of a causal model of the peer library, in one pass without a cache."""
    with torch.no_grad():
        scores: Tensor = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    return scores


def load_gguf_into(model: nn.Module, path: Path, namer: Namer, fix: Callable[[str, Tensor], Tensor]) -> None:
    """Fill a peer's model with a GGUF file's weights, dequantized by the gguf package.

    namer: peer name -> name in the file; fix: (peer name, tensor) -> the tensor as the peer stores it.
    """
    file = open_weights(path)
    state = {}
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight" and namer(name) not in file.tensors:
            continue
        info = file.tensors[namer(name)]
        kind = gguf.GGMLQuantizationType[info.type]
        values = gguf.dequantize(file.raw(info.name).numpy().reshape(info.shape[0], -1), kind)
        state[name] = fix(name, torch.from_numpy(values).reshape(parameter.shape))
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}


_PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
}
_LLAMA_PARTS = {**_PARTS, "post_attention_layernorm": "ffn_norm"}
_GEMMA_PARTS = {
    **_PARTS,
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def llama_cpp_name(name: str, *, is_gemma: bool = False) -> str:
    """llama.cpp's name of a tensor that transformers calls `name`, for llama, qwen3 and gemma3."""
    stem, _, kind = name.rpartition(".")
    if stem in _TOP:
        return f"{_TOP[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{(_GEMMA_PARTS if is_gemma else _LLAMA_PARTS)[part]}.{kind}"


def permuted(tensor: Tensor, heads: int) -> Tensor:
    """Rows of a head in llama.cpp's order: row j and row j + dim / 2 side by side."""
    return tensor.view(heads, 2, -1, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)


def unpermuted(tensor: Tensor, heads: int) -> Tensor:
    """The inverse of `permuted`."""
    return tensor.view(heads, -1, 2, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)


def smollm2(path: Path) -> Any:
    """SmolLM2-135M-Instruct in transformers, with its published configuration and the file's weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
    )
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}

    def fix(name: str, tensor: Tensor) -> Tensor:
        part = name.split(".")[-2]
        return unpermuted(tensor, heads[part]) if part in heads else tensor

    return _filled(LlamaForCausalLM, config, path, llama_cpp_name, fix)


def gemma3_270m(path: Path) -> Any:
    """Gemma 3 270M in transformers, with its published configuration and the file's weights."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    config = Gemma3TextConfig(
        vocab_size=262144,
        hidden_size=640,
        intermediate_size=2048,
        num_hidden_layers=18,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=256,
        max_position_embeddings=32768,
        sliding_window=512,
        query_pre_attn_scalar=256,
        layer_types=(["sliding_attention"] * 5 + ["full_attention"]) * 3,
    )

    def fix(name: str, tensor: Tensor) -> Tensor:
        return tensor - 1 if "norm" in name else tensor  # the peer adds one when it runs

    return _filled(Gemma3ForCausalLM, config, path, lambda name: llama_cpp_name(name, is_gemma=True), fix)


def _filled(kind: Any, config: Any, path: Path, namer: Namer, fix: Callable[[str, Tensor], Tensor]) -> Any:
    model = kind(config).eval()
    load_gguf_into(model, path, namer, fix)
    return model
