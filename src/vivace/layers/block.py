"""The block of most decoders since GPT-2: normalise, attend, add; normalise, feed forward, add."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vivace.layers.attention import SelfAttention
from vivace.layers.context import Context
from vivace.layers.mlp import GatedMlp
from vivace.layers.norm import RmsNorm


@dataclass(frozen=True, eq=False)
class PreNormBlock:
    """h = x + attention(norm(x)); y = h + mlp(norm(h))."""

    attention_norm: RmsNorm
    attention: SelfAttention
    mlp_norm: RmsNorm
    mlp: GatedMlp

    def __call__(self, x: Tensor, ctx: Context) -> Tensor:
        """(rows, hidden) -> (rows, hidden)."""
        h = self.attention(self.attention_norm(x, ctx), ctx, residual=x)
        return self.mlp(self.mlp_norm(h, ctx), ctx, residual=h)
