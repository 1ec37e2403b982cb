"""Qwen3, dense (Yang et al., "Qwen3 Technical Report", 2025, arXiv 2505.09388).

Llama's block with an RMS norm on every query and key head, a head width of its own, and sliding windows as an option.
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
from vivace.models.fields import FULL_ATTENTION, SLIDING_ATTENTION, Fields, read_windows
from vivace.models.gguf import PRE_NORM_NAMES, gguf_fields, gguf_head_dim, gguf_rope, gguf_vocab_size
from vivace.models.stack import Stack, load_stack
from vivace.weights.files import TensorInfo
from vivace.weights.rename import without_prefix


@dataclass(frozen=True)
class Qwen3Config:
    """Sizes and options. `windows` holds one entry per layer: units a row sees, None for all."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int
    rms_norm_eps: float
    rope: RopeConfig
    windows: tuple[int | None, ...]
    activation: Activation = "silu"
    attention_bias: bool = False
    is_tied: bool = False

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> Qwen3Config:
        """Reads a config.json; raises UnsupportedModel for what it does not know."""
        fields = Fields(config, "config.json", irrelevant=ROPE_KEYS)
        heads, kv_heads = fields.heads("num_attention_heads", "num_key_value_heads")
        head_dim, context_length = fields.size("head_dim", 128), fields.size("max_position_embeddings")
        read = cls(
            vocab_size=fields.size("vocab_size"),
            hidden_size=fields.size("hidden_size"),
            intermediate_size=fields.size("intermediate_size"),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            context_length=context_length,
            rms_norm_eps=fields.get("rms_norm_eps", float, 1e-6),
            rope=read_rope(rope_parameters(config), head_dim, context_length),
            windows=_read_windows(fields, fields.layers("num_hidden_layers")),
            activation=activation_named(fields.get("hidden_act", str, "silu")),
            attention_bias=fields.get("attention_bias", bool, False),
            is_tied=fields.get("tie_word_embeddings", bool, False),
        )
        fields.finish()
        return read

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> Qwen3Config:
        """Reads GGUF metadata; biases and a head of its own are told by the tensors. GGUF knows no windows for it."""
        fields = gguf_fields(metadata, "qwen3")
        heads, kv_heads = fields.heads("attention.head_count", "attention.head_count_kv")
        head_dim, context_length = gguf_head_dim(fields), fields.size("context_length")
        read = cls(
            vocab_size=gguf_vocab_size(tensors),
            hidden_size=fields.size("embedding_length"),
            intermediate_size=fields.size("feed_forward_length"),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            context_length=context_length,
            rms_norm_eps=fields.get("attention.layer_norm_rms_epsilon", float),
            rope=gguf_rope(fields, head_dim, context_length),
            windows=(None,) * fields.layers("block_count"),
            attention_bias="blk.0.attn_q.bias" in tensors,
            is_tied="output.weight" not in tensors,
        )
        fields.finish()
        return read


def load(config: Qwen3Config, loader: Loader) -> Stack:
    """The model with the loader's weights."""
    layout = tuple(LayerState(config.num_kv_heads, config.head_dim, config.head_dim, w) for w in config.windows)
    ropes = Ropes({"text": config.rope}, device=loader.device)
    return load_stack(config, loader, layout, ropes, partial(_load_block, config, loader))


def _load_block(config: Qwen3Config, loader: Loader, layer: int, state: LayerState) -> PreNormBlock:
    name, hidden, eps = f"model.layers.{layer}", config.hidden_size, config.rms_norm_eps
    mlp = GatedMlp.load(loader, f"{name}.mlp", hidden, config.intermediate_size, kind=config.activation)
    return PreNormBlock(
        attention_norm=RmsNorm.load(loader, f"{name}.input_layernorm", hidden, eps),
        attention=_load_attention(config, loader, layer, state),
        mlp_norm=RmsNorm.load(loader, f"{name}.post_attention_layernorm", hidden, eps),
        mlp=mlp,
    )


def _load_attention(config: Qwen3Config, loader: Loader, layer: int, state: LayerState) -> SelfAttention:
    name, dim, has_bias = f"model.layers.{layer}.self_attn", config.head_dim, config.attention_bias
    spec = AttentionSpec(config.num_heads, config.num_kv_heads, dim, dim**-0.5, window=state.window)
    q_norm, k_norm = loader.take(f"{name}.q_norm.weight", dim), loader.take(f"{name}.k_norm.weight", dim)
    return SelfAttention(
        qkv=load_qkv(
            loader, {part: f"{name}.{part}_proj" for part in "qkv"}, config.hidden_size, spec, has_bias=has_bias
        ),
        out=Linear.load(
            loader, f"{name}.o_proj", config.hidden_size, spec.heads * dim, split="rows", has_bias=has_bias
        ),
        qkv_spec=QkvSpec(spec.heads, spec.kv_heads, dim, q_norm, k_norm, config.rms_norm_eps),
        spec=spec,
        layer=layer,
        group=state.group,
        rope="text",
    )


def _read_windows(fields: Fields, num_layers: int) -> tuple[int | None, ...]:
    # Without `use_sliding_window` the window in the file has no effect.
    window = fields.size("sliding_window", None)
    window = window if fields.get("use_sliding_window", bool, False) else None
    first_sliding = num_layers if window is None else fields.get("max_window_layers", int, 28)
    fields.raw("max_window_layers")
    default = [FULL_ATTENTION if layer < first_sliding else SLIDING_ATTENTION for layer in range(num_layers)]
    return read_windows(fields, num_layers, window, default)


FAMILY = Family(
    name="qwen3",
    kind="decoder",
    from_dict=Qwen3Config.from_dict,
    readers={"gguf": Qwen3Config.from_gguf},
    load=load,
    sizes=lambda config: {},
    renames={"safetensors": (without_prefix("model."),), "gguf": PRE_NORM_NAMES},
)
