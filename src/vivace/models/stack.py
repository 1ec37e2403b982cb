"""The frame of most decoders: an embedding, blocks one after the other, a last norm, and a head over the vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from vivace.engine.batch import PageGroup
from vivace.layers.context import Context
from vivace.layers.embed import Embedding, load_embedding_and_head
from vivace.layers.linear import Linear, Loader
from vivace.layers.norm import RmsNorm
from vivace.layers.rope import Ropes
from vivace.layers.state import LayerState, Layout, page_groups

Block = Callable[[Tensor, Context], Tensor]  # (rows, hidden) -> (rows, hidden)


class StackConfig(Protocol):
    """What the frame reads of a family's configuration."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def hidden_size(self) -> int: ...

    @property
    def context_length(self) -> int: ...

    @property
    def rms_norm_eps(self) -> float: ...

    @property
    def is_tied(self) -> bool: ...


@dataclass(frozen=True, eq=False)
class Stack:
    """A decoder with its weights; see models.base.Decoder.

    soft_cap  scores become soft_cap * tanh(scores / soft_cap)
    """

    vocab_size: int
    context_length: int
    layout: Layout
    ropes: Ropes
    embedding: Embedding
    blocks: tuple[Block, ...]
    norm: RmsNorm
    head: Linear
    soft_cap: float | None = None

    def page_groups(self, page_size: int, store_format: str = "f32") -> tuple[PageGroup, ...]:
        return page_groups(self.layout, page_size, store_format)

    def forward(self, ids: Tensor, ctx: Context) -> Tensor:
        x = ctx.watch("embedding", self.embedding(ids, ctx))  # (rows, hidden)
        for index, block in enumerate(self.blocks):
            x = ctx.watch(f"layer.{index}", block(x, ctx))
        return ctx.watch("norm", self.norm(x, ctx))

    def logits(self, hidden: Tensor, ctx: Context) -> Tensor:
        scores = self.head(hidden, ctx)
        return scores if self.soft_cap is None else ctx.ops.soft_cap(scores, self.soft_cap)


def load_stack(
    config: StackConfig,
    loader: Loader,
    layout: Layout,
    ropes: Ropes,
    load_block: Callable[[int, LayerState], Block],
    *,
    scale: float = 1.0,
    soft_cap: float | None = None,
) -> Stack:
    """The frame with the loader's weights, under the names of Hugging Face.

    load_block  from the index of a layer and what it stores
    scale       of the embeddings, applied in float32, to which the weights are read
    """
    names, hidden = ("model.embed_tokens", "lm_head"), config.hidden_size
    embedding, head = load_embedding_and_head(
        loader, names, config.vocab_size, hidden, is_tied=config.is_tied, scale=scale
    )
    return Stack(
        vocab_size=config.vocab_size,
        context_length=config.context_length,
        layout=layout,
        ropes=ropes,
        embedding=embedding,
        blocks=tuple(load_block(layer, state) for layer, state in enumerate(layout)),
        norm=RmsNorm.load(loader, "model.norm", hidden, config.rms_norm_eps),
        head=head,
        soft_cap=soft_cap,
    )
