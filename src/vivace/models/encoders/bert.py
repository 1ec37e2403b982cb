"""BERT encoders (Devlin et al., 2018, arXiv 1810.04805), the body of MiniLM and most sentence-embedding models.

Token, position and token-type embeddings are summed and normalised; each block attends both ways and normalises after
each addition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from vivace.errors import UnsupportedModel
from vivace.kernels.ops import Activation, AttentionSpec
from vivace.layers.attention import PackedAttention, load_qkv
from vivace.layers.context import Context
from vivace.layers.embed import Embedding
from vivace.layers.linear import Linear, Loader
from vivace.layers.mlp import Mlp, activation_named
from vivace.layers.norm import LayerNorm
from vivace.models.base import Family
from vivace.models.fields import Fields
from vivace.weights.rename import LEGACY_NORM_NAMES, with_prefix


@dataclass(frozen=True)
class BertConfig:
    """Sizes and options. Names follow the published config.json where they are clear."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    context_length: int
    num_token_types: int
    layer_norm_eps: float
    activation: Activation = "gelu"

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> BertConfig:
        """Reads a config.json; raises UnsupportedModel for what it does not know."""
        fields = Fields(config, "config.json", irrelevant=("tie_word_embeddings",))  # the masked-token head is not used
        fields.require("position_embedding_type", "absolute")
        fields.require("is_decoder", False)
        read = cls(
            vocab_size=fields.size("vocab_size"),
            hidden_size=fields.size("hidden_size"),
            intermediate_size=fields.size("intermediate_size"),
            num_layers=fields.layers("num_hidden_layers"),
            num_heads=fields.size("num_attention_heads"),
            context_length=fields.size("max_position_embeddings"),
            num_token_types=fields.size("type_vocab_size", 2),
            layer_norm_eps=fields.get("layer_norm_eps", float, 1e-12),
            activation=activation_named(fields.get("hidden_act", str, "gelu")),
        )
        fields.finish()
        if read.hidden_size % read.num_heads:
            raise UnsupportedModel(f"hidden size {read.hidden_size} cannot be split into {read.num_heads} heads")
        return read


@dataclass(frozen=True, eq=False)
class BertBlock:
    """h = norm(x + attention(x)); y = norm(h + mlp(h))."""

    attention: PackedAttention
    attention_norm: LayerNorm
    mlp: Mlp
    mlp_norm: LayerNorm

    def __call__(self, x: Tensor, ctx: Context) -> Tensor:
        """(rows, hidden) -> (rows, hidden)."""
        h = self.attention_norm(self.attention(x, ctx, residual=x), ctx)
        return self.mlp_norm(self.mlp(h, ctx, residual=h), ctx)


@dataclass(frozen=True, eq=False)
class Bert:
    """A BERT with its weights; see models.base.Encoder. `pooler` is there if the file has one."""

    config: BertConfig
    words: Embedding
    token_types: Embedding
    positions: Embedding
    norm: LayerNorm
    blocks: tuple[BertBlock, ...]
    pooler: Linear | None

    @property
    def hidden_size(self) -> int:
        return self.config.hidden_size

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def context_length(self) -> int:
        return self.config.context_length

    def forward(self, ids: Tensor, token_types: Tensor, ctx: Context) -> Tensor:
        position = ctx.rows.position[:, 0]
        x = ctx.ops.add(self.words(ids, ctx), self.token_types(token_types, ctx))  # (rows, hidden)
        x = ctx.ops.add(x, self.positions(position, ctx))
        x = ctx.watch("embedding", self.norm(x, ctx))
        for index, block in enumerate(self.blocks):
            x = ctx.watch(f"layer.{index}", block(x, ctx))
        return x

    def pool(self, first: Tensor, ctx: Context) -> Tensor:
        """The pooled output of sequences, from the hidden states of their first tokens: both (sequences, hidden)."""
        assert self.pooler is not None
        return ctx.ops.activation(self.pooler(first, ctx), "tanh")


def load(config: BertConfig, loader: Loader) -> Bert:
    """The model with the loader's weights."""
    hidden, name = config.hidden_size, "embeddings"

    def embedding(part: str, count: int) -> Embedding:
        return Embedding.load(loader, f"{name}.{part}_embeddings", count, hidden, split="none")

    has_pooler = loader.weights.has("pooler.dense.weight")
    return Bert(
        config=config,
        words=embedding("word", config.vocab_size),
        token_types=embedding("token_type", config.num_token_types),
        positions=embedding("position", config.context_length),
        norm=LayerNorm.load(loader, f"{name}.LayerNorm", hidden, config.layer_norm_eps),
        blocks=tuple(_load_block(config, loader, layer) for layer in range(config.num_layers)),
        pooler=_dense(loader, "pooler.dense", hidden, hidden) if has_pooler else None,
    )


def _load_block(config: BertConfig, loader: Loader, layer: int) -> BertBlock:
    name, hidden, eps = f"encoder.layer.{layer}", config.hidden_size, config.layer_norm_eps
    head_dim, inner = hidden // config.num_heads, config.intermediate_size
    spec = AttentionSpec(config.num_heads, config.num_heads, head_dim, head_dim**-0.5, is_causal=False)
    heads, output = f"{name}.attention.self", f"{name}.attention.output"
    projections = {"q": f"{heads}.query", "k": f"{heads}.key", "v": f"{heads}.value"}
    up = Linear.load(loader, f"{name}.intermediate.dense", inner, hidden, split="columns", has_bias=True)
    down = Linear.load(loader, f"{name}.output.dense", hidden, inner, split="rows", has_bias=True)
    return BertBlock(
        attention=PackedAttention(
            qkv=load_qkv(loader, projections, hidden, spec, has_bias=True),
            out=Linear.load(loader, f"{output}.dense", hidden, hidden, split="rows", has_bias=True),
            spec=spec,
        ),
        attention_norm=LayerNorm.load(loader, f"{output}.LayerNorm", hidden, eps),
        mlp=Mlp(up, down, config.activation),
        mlp_norm=LayerNorm.load(loader, f"{name}.output.LayerNorm", hidden, eps),
    )


def _dense(loader: Loader, name: str, outputs: int, inputs: int) -> Linear:
    return Linear.load(loader, name, outputs, inputs, split="none", has_bias=True)


FAMILY = Family(
    name="bert",
    kind="encoder",
    from_dict=BertConfig.from_dict,
    load=load,
    sizes=lambda config: {},
    renames={"safetensors": (with_prefix("bert."), *LEGACY_NORM_NAMES)},
    ignored={
        "safetensors": (
            "embeddings.position_ids",  # a constant that old files hold
            "bert.embeddings.position_ids",
            "cls.{rest}",  # heads of pretraining: masked tokens, next sentence
        )
    },
)
