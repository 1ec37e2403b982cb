"""Llama 1 to 3 and what shares their architecture: SmolLM, Mistral 7B, llama2.c checkpoints.

Touvron et al., "LLaMA", 2023 (arXiv 2302.13971): pre-normalised blocks of rotary attention, grouped from Llama 2 on,
and a gated feed-forward layer. Options cover biases, a tied output head and a sliding window over all layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from vivace.kernels.ops import Activation, AttentionSpec, QkvSpec
from vivace.layers.attention import SelfAttention, load_qkv
from vivace.layers.block import PreNormBlock
from vivace.layers.linear import Linear, Loader
from vivace.layers.mlp import GatedMlp, activation_named
from vivace.layers.norm import RmsNorm
from vivace.layers.rope import Ropes
from vivace.layers.rope_scaling import ROPE_KEYS, RopeConfig, read_rope, rope_parameters
from vivace.layers.state import LayerState
from vivace.models.base import Family
from vivace.models.fields import Fields
from vivace.models.gguf import PRE_NORM_NAMES, ROPE_FACTORS, gguf_fields, gguf_head_dim, gguf_rope, gguf_vocab_size
from vivace.models.stack import Stack, load_stack
from vivace.weights.files import TensorInfo
from vivace.weights.llama2c import LLAMA2C_RULES
from vivace.weights.rename import Rename, without_prefix


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes and options. Names follow the published config.json where they are clear."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int
    rms_norm_eps: float
    rope: RopeConfig
    activation: Activation = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    is_tied: bool = False
    window: int | None = None

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> LlamaConfig:
        """Reads a config.json of a Llama or Mistral model; raises UnsupportedModel for what it does not know."""
        fields = Fields(config, "config.json", irrelevant=ROPE_KEYS)
        heads, kv_heads = fields.heads("num_attention_heads", "num_key_value_heads")
        head_dim = fields.size("head_dim", None) or fields.size("hidden_size") // heads
        context_length = fields.size("max_position_embeddings")
        read = cls(
            vocab_size=fields.size("vocab_size"),
            hidden_size=fields.size("hidden_size"),
            intermediate_size=fields.size("intermediate_size"),
            num_layers=fields.layers("num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            context_length=context_length,
            rms_norm_eps=fields.get("rms_norm_eps", float, 1e-6),
            rope=read_rope(rope_parameters(config), head_dim, context_length),
            activation=activation_named(fields.get("hidden_act", str, "silu")),
            attention_bias=fields.get("attention_bias", bool, False),
            mlp_bias=fields.get("mlp_bias", bool, False),
            is_tied=fields.get("tie_word_embeddings", bool, False),
            window=fields.size("sliding_window", None),
        )
        fields.finish()
        return read

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> LlamaConfig:
        """Reads GGUF metadata; whether there are biases and a head of its own is told by the tensors."""
        fields = gguf_fields(metadata, "llama")
        fields.require("expert_count", 0)
        heads, kv_heads = fields.heads("attention.head_count", "attention.head_count_kv")
        head_dim, context_length = gguf_head_dim(fields), fields.size("context_length")
        read = cls(
            vocab_size=gguf_vocab_size(tensors),
            hidden_size=fields.size("embedding_length"),
            intermediate_size=fields.size("feed_forward_length"),
            num_layers=fields.layers("block_count"),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            context_length=context_length,
            rms_norm_eps=fields.get("attention.layer_norm_rms_epsilon", float),
            rope=gguf_rope(fields, head_dim, context_length),
            attention_bias="blk.0.attn_q.bias" in tensors,
            mlp_bias="blk.0.ffn_gate.bias" in tensors,
            is_tied="output.weight" not in tensors,
        )
        fields.finish()
        return read


def load(config: LlamaConfig, loader: Loader) -> Stack:
    """The model with the loader's weights."""
    layout = (LayerState(config.num_kv_heads, config.head_dim, config.head_dim, config.window),) * config.num_layers
    factors = loader.weights.take_optional(ROPE_FACTORS, (config.rope.dim // 2,))
    ropes = Ropes({"text": config.rope}, factors, loader.device)
    return load_stack(config, loader, layout, ropes, partial(_load_block, config, loader))


def _load_block(config: LlamaConfig, loader: Loader, layer: int, state: LayerState) -> PreNormBlock:
    name, hidden, eps = f"model.layers.{layer}", config.hidden_size, config.rms_norm_eps
    spec = AttentionSpec(
        config.num_heads, config.num_kv_heads, config.head_dim, config.head_dim**-0.5, window=config.window
    )
    projections = {part: f"{name}.self_attn.{part}_proj" for part in ("q", "k", "v")}
    out_name, inner, has_bias = f"{name}.self_attn.o_proj", spec.heads * spec.head_dim, config.attention_bias
    return PreNormBlock(
        attention_norm=RmsNorm.load(loader, f"{name}.input_layernorm", hidden, eps),
        attention=SelfAttention(
            qkv=load_qkv(loader, projections, hidden, spec, has_bias=has_bias),
            out=Linear.load(loader, out_name, hidden, inner, split="rows", has_bias=has_bias),
            qkv_spec=QkvSpec(spec.heads, spec.kv_heads, spec.head_dim),
            spec=spec,
            layer=layer,
            group=state.group,
            rope="text",
        ),
        mlp_norm=RmsNorm.load(loader, f"{name}.post_attention_layernorm", hidden, eps),
        mlp=GatedMlp.load(
            loader,
            f"{name}.mlp",
            hidden,
            config.intermediate_size,
            kind=config.activation,
            has_bias=config.mlp_bias,
        ),
    )


_QUERY, _KEY = "model.layers.{i}.self_attn.q_proj.{rest}", "model.layers.{i}.self_attn.k_proj.{rest}"
FAMILY = Family(
    name="llama",
    kind="decoder",
    from_dict=LlamaConfig.from_dict,
    readers={
        "gguf": LlamaConfig.from_gguf,
        "llama2c": lambda metadata, tensors: LlamaConfig.from_dict(metadata),
    },
    load=load,
    sizes=lambda config: {"num_heads": config.num_heads, "num_kv_heads": config.num_kv_heads},
    renames={
        "safetensors": (without_prefix("model."),),
        # llama.cpp rotates neighbouring rows of q and k; the rows of these two come first so that they decide.
        "gguf": (
            Rename(_QUERY, "blk.{i}.attn_q.{rest}", "unpermute_rope", by="num_heads"),
            Rename(_KEY, "blk.{i}.attn_k.{rest}", "unpermute_rope", by="num_kv_heads"),
            *PRE_NORM_NAMES,
        ),
        "llama2c": LLAMA2C_RULES,
    },
    ignored={"safetensors": ("model.layers.{i}.self_attn.rotary_emb.inv_freq",)},  # a constant that old files hold
)
