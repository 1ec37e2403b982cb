"""Gemma 3, text (Gemma Team, "Gemma 3 Technical Report", 2025, arXiv 2503.19786).

Five layers that see a sliding window for one that sees everything, each kind with its own rotary table and page group;
norms before and after both halves of a block and on every query and key head; embeddings scaled by sqrt(hidden).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from vivace.errors import UnsupportedModel
from vivace.kernels.ops import Activation, AttentionSpec, QkvSpec
from vivace.layers.attention import SelfAttention, load_qkv
from vivace.layers.context import Context
from vivace.layers.linear import Linear, Loader
from vivace.layers.mlp import GatedMlp, activation_named
from vivace.layers.norm import RmsNorm
from vivace.layers.rope import Ropes
from vivace.layers.rope_scaling import RopeConfig, read_rope
from vivace.layers.state import LayerState
from vivace.models.base import Family
from vivace.models.fields import FULL_ATTENTION, SLIDING_ATTENTION, Fields, read_windows
from vivace.models.gguf import DECODER_NAMES, gguf_fields, gguf_head_dim, gguf_rope, gguf_vocab_size
from vivace.models.stack import Stack, load_stack
from vivace.weights.files import TensorInfo
from vivace.weights.rename import Rename, without_prefix

GLOBAL, LOCAL = "global", "local"  # names of the rotary tables
GLOBAL_THETA, LOCAL_THETA = 1_000_000.0, 10_000.0
PATTERN = 6  # every sixth layer is global
LAYERS_OF_27B = 62  # GGUF files do not state the query scale, and only this size's is not the head's width


@dataclass(frozen=True)
class Gemma3Config:
    """Sizes and options. `windows` holds one entry per layer: units a row sees, None for all."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int
    rms_norm_eps: float
    global_rope: RopeConfig
    local_rope: RopeConfig
    windows: tuple[int | None, ...]
    query_scalar: float  # scores are divided by its square root
    activation: Activation = "gelu_tanh"
    attention_bias: bool = False
    final_soft_cap: float | None = None
    is_tied: bool = True

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> Gemma3Config:
        """Reads a config.json of a text model; raises UnsupportedModel for what it does not know."""
        rope_keys = ("rope_parameters", "rope_scaling", "rope_theta", "rope_local_base_freq")
        fields = Fields(config, "config.json", irrelevant=(*rope_keys, "cache_implementation"))
        head_dim, context_length = fields.size("head_dim", 256), fields.size("max_position_embeddings", 131_072)
        global_rope, local_rope = (
            read_rope(parameters, head_dim, context_length) for parameters in _rope_parameters(config)
        )
        # Published models have neither; transformers ignores the first, so there is nothing to compare with.
        fields.require("attn_logit_softcapping")
        fields.require("use_bidirectional_attention", False)
        heads, kv_heads = fields.heads("num_attention_heads", "num_key_value_heads")
        read = cls(
            vocab_size=fields.size("vocab_size"),
            hidden_size=fields.size("hidden_size"),
            intermediate_size=fields.size("intermediate_size"),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            context_length=context_length,
            rms_norm_eps=fields.get("rms_norm_eps", float, 1e-6),
            global_rope=global_rope,
            local_rope=local_rope,
            windows=_read_windows(fields, fields.layers("num_hidden_layers"), fields.size("sliding_window", None)),
            query_scalar=fields.get("query_pre_attn_scalar", float, 256.0),
            activation=activation_named(fields.get("hidden_activation", str, "gelu_pytorch_tanh")),
            attention_bias=fields.get("attention_bias", bool, False),
            final_soft_cap=fields.get("final_logit_softcapping", float, None),
            is_tied=fields.get("tie_word_embeddings", bool, True),
        )
        fields.finish()
        return read

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> Gemma3Config:
        """Reads GGUF metadata. What it leaves out (pattern, local base, query scale) is what llama.cpp assumes."""
        fields = gguf_fields(metadata, "gemma3")
        head_dim, context_length = gguf_head_dim(fields), fields.size("context_length")
        heads, kv_heads = fields.heads("attention.head_count", "attention.head_count_kv")
        hidden, num_layers = fields.size("embedding_length"), fields.layers("block_count")
        local_theta = fields.get("rope.freq_base_swa", float, LOCAL_THETA)
        read = cls(
            vocab_size=gguf_vocab_size(tensors),
            hidden_size=hidden,
            intermediate_size=fields.size("feed_forward_length"),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            context_length=context_length,
            rms_norm_eps=fields.get("attention.layer_norm_rms_epsilon", float),
            global_rope=gguf_rope(fields, head_dim, context_length, GLOBAL_THETA),
            local_rope=RopeConfig(head_dim, context_length, local_theta),
            windows=_gguf_windows(fields, num_layers),
            query_scalar=float(hidden // heads if num_layers == LAYERS_OF_27B else head_dim),
            final_soft_cap=fields.get("final_logit_softcapping", float, None),
            is_tied="output.weight" not in tensors,
        )
        fields.finish()
        return read


@dataclass(frozen=True, eq=False)
class Gemma3Block:
    """h = x + norm(attention(norm(x))); y = h + norm(mlp(norm(h)))."""

    attention_norm: RmsNorm
    attention: SelfAttention
    attention_out_norm: RmsNorm
    mlp_norm: RmsNorm
    mlp: GatedMlp
    mlp_out_norm: RmsNorm

    def __call__(self, x: Tensor, ctx: Context) -> Tensor:
        """(rows, hidden) -> (rows, hidden)."""
        attended = self.attention(self.attention_norm(x, ctx), ctx)
        h = ctx.ops.add(x, self.attention_out_norm(attended, ctx))
        return ctx.ops.add(h, self.mlp_out_norm(self.mlp(self.mlp_norm(h, ctx), ctx), ctx))


def load(config: Gemma3Config, loader: Loader) -> Stack:
    """The model with the loader's weights."""
    layout = tuple(LayerState(config.num_kv_heads, config.head_dim, config.head_dim, w) for w in config.windows)
    ropes = Ropes({GLOBAL: config.global_rope, LOCAL: config.local_rope}, device=loader.device)
    scale, load_block = config.hidden_size**0.5, partial(_load_block, config, loader)
    return load_stack(config, loader, layout, ropes, load_block, scale=scale, soft_cap=config.final_soft_cap)


def _load_block(config: Gemma3Config, loader: Loader, layer: int, state: LayerState) -> Gemma3Block:
    name, hidden = f"model.layers.{layer}", config.hidden_size

    def norm(part: str) -> RmsNorm:
        return RmsNorm.load(loader, f"{name}.{part}", hidden, config.rms_norm_eps)

    return Gemma3Block(
        attention_norm=norm("input_layernorm"),
        attention=_load_attention(config, loader, layer, state),
        attention_out_norm=norm("post_attention_layernorm"),
        mlp_norm=norm("pre_feedforward_layernorm"),
        mlp=GatedMlp.load(loader, f"{name}.mlp", hidden, config.intermediate_size, kind=config.activation),
        mlp_out_norm=norm("post_feedforward_layernorm"),
    )


def _load_attention(config: Gemma3Config, loader: Loader, layer: int, state: LayerState) -> SelfAttention:
    name, dim, has_bias = f"model.layers.{layer}.self_attn", config.head_dim, config.attention_bias
    spec = AttentionSpec(config.num_heads, config.num_kv_heads, dim, config.query_scalar**-0.5, window=state.window)
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
        rope=GLOBAL if state.window is None else LOCAL,
    )


def _rope_parameters(config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rotary keys of global and local layers: nested by layer type in newer files, flat in older ones.

    In older files the scaling is about the global layers alone.
    """
    nested = _object(config, "rope_parameters")
    full = {**_object(nested, FULL_ATTENTION), **_object(config, "rope_scaling")}
    sliding = _object(nested, SLIDING_ATTENTION)
    full.setdefault("rope_theta", config.get("rope_theta") or GLOBAL_THETA)
    sliding.setdefault("rope_theta", config.get("rope_local_base_freq") or LOCAL_THETA)
    return full, sliding


def _object(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = values.get(key) or {}
    if not isinstance(found, Mapping):
        raise UnsupportedModel(f"config.json: '{key}' is {found!r}, expected an object")
    return dict(found)


def _read_windows(fields: Fields, num_layers: int, window: int | None) -> tuple[int | None, ...]:
    pattern = fields.size("sliding_window_pattern", fields.size("_sliding_window_pattern", PATTERN))
    return read_windows(fields, num_layers, window, _layer_types(num_layers, pattern))


def _gguf_windows(fields: Fields, num_layers: int) -> tuple[int | None, ...]:
    window = fields.size("attention.sliding_window")
    pattern = fields.raw("attention.sliding_window_pattern") or PATTERN
    if isinstance(pattern, list):  # one flag per layer: is it sliding?
        types = [SLIDING_ATTENTION if flag else FULL_ATTENTION for flag in pattern]
    else:
        types = _layer_types(num_layers, pattern)
    return read_windows(fields, num_layers, window, types)


def _layer_types(num_layers: int, pattern: int) -> list[str]:
    return [FULL_ATTENTION if (layer + 1) % pattern == 0 else SLIDING_ATTENTION for layer in range(num_layers)]


# Files of transformers hold every norm's weight less one (rename rules with a transform); GGUF files hold the weight.
_NORMS = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
_NORM_NAMES = (
    "model.norm.weight",
    *(f"model.layers.{{i}}.{norm}.weight" for norm in (*_NORMS, "self_attn.q_norm", "self_attn.k_norm")),
)
_GGUF_NORMS = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")

FAMILY = Family(
    name="gemma3",
    kind="decoder",
    from_dict=Gemma3Config.from_dict,
    readers={"gguf": Gemma3Config.from_gguf},
    load=load,
    sizes=lambda config: {},
    renames={
        "safetensors": (*(Rename(name, name, "offset_one") for name in _NORM_NAMES), without_prefix("model.")),
        "gguf": (
            *(
                Rename(f"model.layers.{{i}}.{ours}.weight", f"blk.{{i}}.{theirs}.weight")
                for ours, theirs in zip(_NORMS, _GGUF_NORMS, strict=True)
            ),
            *DECODER_NAMES,
        ),
    },
)
