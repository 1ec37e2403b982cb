"""Self-attention: over the paged store for decoders, within the step for encoders (Vaswani et al., 2017)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from vivace.kernels.ops import AttentionSpec, QkvSpec
from vivace.layers.context import Context
from vivace.layers.linear import Linear, Loader


@dataclass(frozen=True, eq=False)
class SelfAttention:
    """Causal attention with rotary positions. Keys and values are stored first and then read from the store only.

    layer  index of its store in the context
    group  page group whose block tables it reads
    rope   name of its rotary table
    """

    qkv: Linear
    out: Linear
    qkv_spec: QkvSpec
    spec: AttentionSpec
    layer: int
    group: str
    rope: str

    def __call__(self, x: Tensor, ctx: Context, residual: Tensor | None = None) -> Tensor:
        """(rows, size) -> (rows, size), added to the residual if there is one."""
        cos, sin = ctx.angles[self.rope]
        store, rows = ctx.stores[self.layer], ctx.rows.groups[self.group]
        q = ctx.ops.qkv_rope_store(x, self.qkv.weight, self.qkv_spec, cos, sin, store, rows)
        y = ctx.ops.attention(q, store, ctx.rows, self.group, self.spec)  # (rows, heads * value_dim)
        return self.out(y, ctx) if residual is None else self.out.add_to(residual, y, ctx)


@dataclass(frozen=True, eq=False)
class PackedAttention:
    """Attention in which every row sees its whole sequence, and nothing is stored."""

    qkv: Linear
    out: Linear
    spec: AttentionSpec

    def __call__(self, x: Tensor, ctx: Context, residual: Tensor) -> Tensor:
        """residual + the layer: (rows, size) -> (rows, size)."""
        y = ctx.ops.attention_packed(self.qkv(x, ctx), ctx.rows, self.spec)
        return self.out.add_to(residual, y, ctx)


def load_qkv(
    loader: Loader, names: Mapping[str, str], size: int, spec: AttentionSpec, *, has_bias: bool = False
) -> Linear:
    """The fused projection with slices "q", "k", "v"; `names` gives the weight name of each."""
    outputs = {"q": spec.heads * spec.head_dim, "k": spec.kv_heads * spec.head_dim, "v": spec.kv_heads * spec.head_dim}
    parts = {part: (names[part], outputs[part]) for part in ("q", "k", "v")}
    return Linear.load_fused(loader, parts, size, split="columns", has_bias=has_bias)
