"""Embeddings: a vector per id, and the output projection that may share their table."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vivace.kernels.ops import LinearWeight, Split
from vivace.layers.context import Context
from vivace.layers.linear import Linear, Loader


@dataclass(frozen=True, eq=False)
class Embedding:
    """y = scale * W[id]."""

    weight: LinearWeight  # (count, size)
    scale: float = 1.0

    @classmethod
    def load(
        cls,
        loader: Loader,
        name: str,
        count: int,
        size: int,
        *,
        split: Split,
        scale: float = 1.0,
        is_head: bool = False,
    ) -> Embedding:
        """Takes `name`.weight (count, size). is_head: the table is also the output projection's matrix."""
        matrix = loader.weights.take_stored(f"{name}.weight", (count, size))
        return cls(loader.pack([matrix], None, split) if is_head else loader.pack_table(matrix, split), scale)

    def __call__(self, ids: Tensor, ctx: Context) -> Tensor:
        """(rows,) int64 -> (rows, size)."""
        return ctx.ops.embedding(ids, self.weight, self.scale)


def load_embedding_and_head(
    loader: Loader, names: tuple[str, str], count: int, size: int, *, is_tied: bool, scale: float = 1.0
) -> tuple[Embedding, Linear]:
    """The token embedding and the map from hidden states to scores, by their weight names (embedding, head).

    A tied head is the embedding's table. A file that holds an equal copy of it is accepted; should the copy differ,
    it is what the model was trained with, and it is used.
    """
    embedding = Embedding.load(loader, names[0], count, size, split="columns", scale=scale, is_head=is_tied)
    if not is_tied:
        return embedding, Linear.load(loader, names[1], count, size, split="columns")
    if not loader.weights.has(f"{names[1]}.weight"):
        return embedding, Linear(embedding.weight)
    own = loader.weights.take_own(f"{names[1]}.weight", f"{names[0]}.weight", (count, size))
    return embedding, Linear(embedding.weight if own is None else loader.pack([own], None, "columns"))
