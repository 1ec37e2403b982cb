"""Reading a model's configuration from GGUF metadata, and the tensor names that decoders share in GGUF files.

Keys and names: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md and llama.cpp's `llama-arch.cpp`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vivace.errors import UnsupportedModel
from vivace.layers.rope_scaling import RopeConfig, read_rope
from vivace.models.fields import Fields
from vivace.weights.files import TensorInfo
from vivace.weights.rename import Rename

# Under the architecture's prefix. The vocabulary's size is told by the embedding; "finetuned" is a remark.
IRRELEVANT = ("vocab_size", "rope.scaling.finetuned")

_SCALING_KEYS = {
    "rope.scaling.factor": "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}

ROPE_FACTORS = "rope_freqs.weight"  # Llama 3.1's scaling is no metadata but a tensor that divides the frequencies

_LAYER = "model.layers.{i}."
DECODER_NAMES = (
    Rename("model.embed_tokens.weight", "token_embd.weight"),
    Rename("model.norm.weight", "output_norm.weight"),
    Rename("lm_head.weight", "output.weight"),
    Rename(_LAYER + "input_layernorm.weight", "blk.{i}.attn_norm.weight"),
    Rename(_LAYER + "self_attn.q_proj.{rest}", "blk.{i}.attn_q.{rest}"),
    Rename(_LAYER + "self_attn.k_proj.{rest}", "blk.{i}.attn_k.{rest}"),
    Rename(_LAYER + "self_attn.v_proj.{rest}", "blk.{i}.attn_v.{rest}"),
    Rename(_LAYER + "self_attn.o_proj.{rest}", "blk.{i}.attn_output.{rest}"),
    Rename(_LAYER + "self_attn.q_norm.weight", "blk.{i}.attn_q_norm.weight"),
    Rename(_LAYER + "self_attn.k_norm.weight", "blk.{i}.attn_k_norm.weight"),
    Rename(_LAYER + "mlp.gate_proj.{rest}", "blk.{i}.ffn_gate.{rest}"),
    Rename(_LAYER + "mlp.up_proj.{rest}", "blk.{i}.ffn_up.{rest}"),
    Rename(_LAYER + "mlp.down_proj.{rest}", "blk.{i}.ffn_down.{rest}"),
)
PRE_NORM_NAMES = (*DECODER_NAMES, Rename(_LAYER + "post_attention_layernorm.weight", "blk.{i}.ffn_norm.weight"))


def gguf_fields(metadata: Mapping[str, Any], arch: str) -> Fields:
    """The keys of one architecture without their prefix; other keys do not concern the forward pass."""
    prefix = f"{arch}."
    # By key: reading all items would decode the vocabulary.
    values = {key[len(prefix) :]: metadata[key] for key in metadata if key.startswith(prefix)}
    return Fields(values, f"GGUF metadata of '{arch}'", IRRELEVANT)


def gguf_vocab_size(tensors: Mapping[str, TensorInfo]) -> int:
    """Rows of the token embedding: the vocabulary as the weights see it."""
    if "token_embd.weight" not in tensors:
        raise UnsupportedModel("the GGUF file has no tensor 'token_embd.weight'", hint="is it a language model?")
    return tensors["token_embd.weight"].shape[0]


def gguf_head_dim(fields: Fields) -> int:
    """Width of a head. Keys and values of another width than queries are not supported."""
    derived = fields.size("embedding_length") // fields.size("attention.head_count")
    head_dim = int(fields.size("attention.key_length", derived))
    fields.require("attention.value_length", head_dim)
    return head_dim


def gguf_rope(fields: Fields, head_dim: int, max_length: int, default_theta: float = 10000.0) -> RopeConfig:
    """The rotary table of a file's metadata."""
    kind = fields.get("rope.scaling.type", str, "none")
    scaling = {
        ours: value for theirs, ours in _SCALING_KEYS.items() if (value := fields.get(theirs, float, None)) is not None
    }
    linear = fields.get("rope.scale_linear", float, 1.0)  # how old files spell linear scaling
    if linear != 1.0:
        kind, scaling["factor"] = "linear", linear
    fields.require("rope.scaling.attn_factor", 1.0)
    parameters: dict[str, Any] = {"rope_type": "default"} if kind == "none" else {"rope_type": kind, **scaling}
    parameters["rope_theta"] = fields.get("rope.freq_base", float, default_theta)
    return read_rope(parameters, fields.size("rope.dimension_count", head_dim), max_length)
