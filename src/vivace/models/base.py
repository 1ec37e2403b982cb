"""What pipelines may ask of a model, and what a model family tells the loader about itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from torch import Tensor

from vivace.engine.batch import PageGroup
from vivace.layers.context import Context
from vivace.layers.linear import Loader
from vivace.layers.rope import Ropes
from vivace.layers.state import Layout
from vivace.weights.files import TensorInfo
from vivace.weights.rename import Rename


@runtime_checkable
class Decoder(Protocol):
    """A model that reads rows of tokens, keeps keys and values in pages, and predicts the token after any row.

    layout          what each layer stores (layers.state): stores are made from it, one per layer
    ropes           its rotary tables: `ropes.variant(limit)` once per job, `ropes.angles(...)` once per step
    vocab_size      number of logits; token ids are below it
    context_length  most units a job may have, prompt and answer together
    """

    @property
    def layout(self) -> Layout: ...

    @property
    def ropes(self) -> Ropes: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def context_length(self) -> int: ...

    def page_groups(self, page_size: int, store_format: str = "f32") -> tuple[PageGroup, ...]:
        """The page groups that its layout needs."""
        ...

    def forward(self, ids: Tensor, ctx: Context) -> Tensor:
        """ids (rows,) int64 -> hidden states after the final norm (rows, hidden). Stores keys and values on the way."""
        ...

    def logits(self, hidden: Tensor, ctx: Context) -> Tensor:
        """Hidden states of any rows (n, hidden) -> scores of the next token (n, vocab_size)."""
        ...


@runtime_checkable
class Encoder(Protocol):
    """A model that turns whole sequences into one vector per token. It keeps nothing between steps.

    hidden_size     numbers per token
    vocab_size      token ids are below it
    context_length  most tokens of a sequence
    """

    @property
    def hidden_size(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def context_length(self) -> int: ...

    def forward(self, ids: Tensor, token_types: Tensor, ctx: Context) -> Tensor:
        """ids, token_types (rows,) int64; ctx.rows.starts cuts the rows into sequences -> (rows, hidden_size)."""
        ...


@dataclass(frozen=True)
class Family:
    """What index.py finds under a foreign name: how to read a configuration and build the model from weights.

    kind       "decoder" or "encoder"
    from_dict  published config.json -> configuration of the family
    readers    per weight format that describes itself ("gguf", "llama2c"): (metadata, tensors) -> configuration
    load       (configuration, loader) -> model
    renames    per weight format: how the file spells the model's weight names
    ignored    per weight format: patterns of tensors (names in the file) that the model does not need
    sizes      numbers that the transforms of the rename rules need, such as num_heads
    """

    name: str
    kind: Literal["decoder", "encoder"]
    from_dict: Callable[[Mapping[str, Any]], Any]
    load: Callable[[Any, Loader], Any]
    sizes: Callable[[Any], Mapping[str, int]]
    readers: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, TensorInfo]], Any]] = field(default_factory=dict)
    renames: Mapping[str, Sequence[Rename]] = field(default_factory=dict)
    ignored: Mapping[str, Sequence[str]] = field(default_factory=dict)
