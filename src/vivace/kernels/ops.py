"""The menu: every numerical operation that layers may call, with its signature, equation and shapes.

Layers call `ctx.ops.<name>`; `kernels.select` binds each name to one implementation at load. Coarse operations
(`qkv_rope_store`, `gated_mlp`, `linear_add`) exist where a native kernel gains by fusing; their reference is the plain
composition of fine ones. Output shapes depend on input shapes only, so that a step can be recorded and replayed.
Rows are the units of one step over all sequences, packed without padding. All floats are float32 unless a weight
or a store says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from vivace.errors import ConfigError
from vivace.kernels.quantized import StoredMatrix
from vivace.kernels.rooms import FRESH_MEMORY, Rooms

Split = Literal["columns", "rows", "experts", "none"]
Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "tanh"]
Pairing = Literal["half", "interleaved"]
Scoring = Literal["softmax", "sigmoid"]


@dataclass(frozen=True, eq=False)
class LinearWeight:
    """The weight of a linear map or an embedding, as a kernel wants it.

    format  layout of `data`; "f32" is a plain (outputs, inputs) float32 matrix, native kernels add packed ones;
            "rows" is a plain table of any float type, for look-ups alone; "stored" is what a loader hands to
            `pack_linear`: no data yet, but matrices one below the other
    bias    (outputs,) or None
    slices  named ranges of outputs of a fused projection, such as q, k, v; kept for adapters, quantizers and loaders
    split   how the outputs or inputs are divided over ranks
    stored  the matrices of the format "stored", as their file holds them
    handle  what a native kernel knows of packed data
    """

    data: Tensor
    bias: Tensor | None = None
    format: str = "f32"
    slices: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    split: Split = "none"
    outputs: int = 0
    inputs: int = 0
    stored: tuple[StoredMatrix, ...] = ()
    handle: Any = None


@dataclass(frozen=True)
class StoreShape:
    """What a store holds: `pages`, the null page included, of `page_size` units."""

    pages: int
    page_size: int
    kv_heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True, eq=False)
class KVStore:
    """Keys and values of one layer in pages. keys: (pages, page_size, kv_heads, key_dim), stored rotated;
    values: (pages, page_size, kv_heads, value_dim). Page 0 is the null page: never read, safe to write.

    key_scales, value_scales  (pages, page_size, kv_heads) float32 of the format "i8", in which a key is its codes times
                              its scale; else None

    Other formats than the plain ones order the dims as kernels.store tells; pages always come first."""

    keys: Tensor
    values: Tensor
    format: str = "f32"
    key_scales: Tensor | None = None
    value_scales: Tensor | None = None


@dataclass(frozen=True, eq=False)
class GroupRows:
    """Where the rows of a step stand in one page group.

    slot   (rows,) int64: page * page_size + offset, where the row's key and value are stored
    table  (sequences, pages) int32: block table of each sequence; unit u of it stands in page table[s, u // page_size]
    """

    slot: Tensor
    table: Tensor
    page_size: int


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of one step.

    position  (rows, axes) int64: one axis for text, three for M-RoPE
    parent    (rows,) int32: the row of this step that comes before this one, or -1 if the unit before it was stored by
              an earlier step
    sequence  (rows,) int32: which sequence a row belongs to
    starts    sequence s owns rows starts[s] .. starts[s + 1]
    context   units of each sequence stored before this step; row i of sequence s is unit context[s] + i of its table
    variant   (rows,) int32: which frequency table length-dependent rotary embeddings use, fixed per job
    groups    per page group name
    is_chain  every row's parent is the row before it in its sequence (no draft tree): the plain causal case
    """

    position: Tensor
    parent: Tensor
    sequence: Tensor
    starts: tuple[int, ...]
    context: tuple[int, ...]
    variant: Tensor
    groups: Mapping[str, GroupRows]
    is_chain: bool = True


@dataclass(frozen=True)
class AttentionSpec:
    """What an attention layer asks for: softmax(scale q k^T, capped, biased, masked) v.

    heads, kv_heads   query head h reads key head h * kv_heads // heads
    window            a row sees itself and the window - 1 units before it, without causality as many after it;
                      None sees all
    soft_cap          scores become cap * tanh(score / cap)
    is_causal         false for encoders: a row sees every row of its sequence
    slopes            (heads,) or None: a score gets slope * distance, the distance being unit - the row's own unit
                      (ALiBi, Press et al., arXiv 2108.12409)
    biases            (heads, 2 * reach + 1) or None: a score gets the bias of its distance, -reach .. reach; what is
                      farther gets the bias at the end (relative positions in buckets: T5, arXiv 1910.10683)
    Raises ConfigError where heads do not divide or a table has another shape.
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    soft_cap: float | None = None
    is_causal: bool = True
    slopes: Tensor | None = field(default=None, compare=False)
    biases: Tensor | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.heads < 1 or self.kv_heads < 1 or self.heads % self.kv_heads:
            message = f"{self.heads} heads cannot share {self.kv_heads} key heads"
            raise ConfigError(message, hint="the number of key heads divides the number of heads")
        if self.slopes is not None and self.slopes.shape != (self.heads,):
            raise ConfigError(f"slopes have the shape {tuple(self.slopes.shape)}, expected ({self.heads},)")
        if self.biases is not None:
            shape = tuple(self.biases.shape)
            if len(shape) != 2 or shape[0] != self.heads or shape[1] % 2 == 0:
                raise ConfigError(f"biases have the shape {shape}, expected ({self.heads}, an odd number)")


@dataclass(frozen=True, eq=False)
class QkvSpec:
    """How `qkv_rope_store` splits, normalises and rotates. q_norm, k_norm: (head_dim,) RMS weights or None."""

    heads: int
    kv_heads: int
    head_dim: int
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    norm_eps: float = 1e-6
    pairing: Pairing = "half"


@dataclass(frozen=True)
class DrawSpec:
    """What `draw` keeps of a row's scores, one after the other, as the sampling techniques of these names do.

    temperature  scores become (x - max x) / temperature, above 0; 1: they stay as they are
    top_k        those from the k-th largest on; 0: all
    top_p        then those from the last one of the nucleus on; 1: all
    min_p        then those with at least this part of the largest one's probability; 0: all
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


@dataclass(frozen=True, eq=False)
class ExpertWeights:
    """One linear map for each expert, all of one shape. handle: what a native kernel knows of them."""

    experts: tuple[LinearWeight, ...]
    handle: Any = None


@dataclass(frozen=True)
class RouteSpec:
    """How `route` chooses the experts of a row.

    count          experts that each row takes
    scoring        what makes scores of logits; with a bias the ranks that choose are scores + bias, else the scores
    groups         the experts stand in so many groups of equal size, of which only the best kept_groups take part
    group_best     a group is ranked by the sum of so many of its best ranks
    is_normalized  the weights of a row are divided by their sum
    scale          and then multiplied by this
    """

    count: int
    scoring: Scoring = "softmax"
    groups: int = 1
    kept_groups: int = 1
    group_best: int = 1
    is_normalized: bool = True
    scale: float = 1.0


class Ops(Protocol):
    """The bound operations. x is (rows, inputs) and contiguous; outputs are new tensors."""

    def pack_linear(self, weight: LinearWeight, rooms: Rooms = FRESH_MEMORY) -> LinearWeight:
        """The weight in the layout that these operations want, made once at load, in a room of its own.

        The reference takes no room: its weights are plain."""
        ...

    def pack_table(self, weight: LinearWeight, rooms: Rooms = FRESH_MEMORY) -> LinearWeight:
        """The same for a table that `embedding` alone reads."""
        ...

    def pack_experts(self, weights: Sequence[LinearWeight]) -> ExpertWeights:
        """The weights of all experts, each packed as `pack_linear` does."""
        ...

    def make_store(self, shape: StoreShape, store_format: str) -> KVStore:
        """An empty store in the layout that these operations want. store_format: one of kernels.store.STORE_DTYPES.

        Raises ConfigError for another one, and for more memory than the system gives."""
        ...

    def embedding(self, ids: Tensor, weight: LinearWeight, scale: float = 1.0) -> Tensor:
        """y[r] = scale * W[ids[r]]. ids (rows,) int64 -> (rows, inputs)."""
        ...

    def linear(self, x: Tensor, weight: LinearWeight) -> Tensor:
        """y = x W^T + b -> (rows, outputs)."""
        ...

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """x + y, of one shape."""
        ...

    def linear_add(self, x: Tensor, weight: LinearWeight, residual: Tensor) -> Tensor:
        """y = residual + (x W^T + b) -> (rows, outputs)."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """y = x / sqrt(mean(x^2) + eps) * w over the last dimension (any leading ones)."""
        ...

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        """y = (x - mean(x)) / sqrt(var(x) + eps) * w + b over the last dimension."""
        ...

    def activation(self, x: Tensor, kind: Activation) -> Tensor:
        """Elementwise activation; "gelu" is the exact one (erf)."""
        ...

    def soft_cap(self, x: Tensor, cap: float) -> Tensor:
        """y = cap * tanh(x / cap)."""
        ...

    def rope(self, x: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing) -> Tensor:
        """Rotate the first 2 * d dims of each head (RoFormer, eq. 34).

        x (rows, heads, dim); cos, sin (rows, d) -> like x.
        "half" pairs dim i with i + d, "interleaved" pairs 2i with 2i + 1.
        """
        ...

    def rope_angles(
        self, position: Tensor, variant: Tensor, frequencies: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        """cos and sin of position[r, 0] * frequencies[variant[r]], times scale: what `rope` takes.

        position (rows, axes) int64, variant (rows,) int32, frequencies (variants, d) -> two of (rows, d)."""
        ...

    def qkv_rope_store(
        self, x: Tensor, weight: LinearWeight, spec: QkvSpec, cos: Tensor, sin: Tensor, store: KVStore, rows: GroupRows
    ) -> Tensor:
        """q, k, v = split(x W^T + b); normalise and rotate q and k; store k and v at rows.slot.

        -> q (rows, heads, head_dim)."""
        ...

    def gated_mlp(
        self, x: Tensor, gate_up: LinearWeight, down: LinearWeight, kind: Activation, residual: Tensor | None
    ) -> Tensor:
        """y = residual + (act(x Wg^T) * (x Wu^T)) Wd^T; gate_up holds slices "gate" and "up" -> (rows, outputs).

        Without a residual nothing is added: models that normalise after the layer add it themselves.
        """
        ...

    def draw(self, x: Tensor, spec: DrawSpec, uniforms: Tensor) -> Tensor:
        """One id of each row by inversion: the first with sum_{j<=i} w_j > u * sum_j w_j, w = exp of the kept scores.

        Sums are in float64, in the order of the ids. A NaN is never drawn. x (rows, width), uniforms (rows,) float64
        from [0, 1) -> (rows,) int64. Raises ValueError for a row whose largest score is not finite."""
        ...

    def route(self, logits: Tensor, spec: RouteSpec, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The experts of each row and their weights, the best first, the lowest expert of equals.

        A NaN counts as the best, so that it reaches the result. logits (rows, experts), bias (experts,) -> int32 and
        float32 of (rows, count)."""
        ...

    def grouped_linear(self, x: Tensor, chosen: Tensor, weights: ExpertWeights) -> Tensor:
        """y[r, j] = W_e x[r] + b_e with e = chosen[r, j], or of x[r, j] if x is (rows, count, inputs).

        chosen (rows, count) int32 -> (rows, count, outputs). How many rows an expert has is found in `chosen`."""
        ...

    def combine(self, x: Tensor, weights: Tensor, residual: Tensor | None) -> Tensor:
        """y[r] = residual[r] + sum_j weights[r, j] * x[r, j]. x (rows, count, width), residual (rows, width)."""
        ...

    def expert_mlp(
        self,
        x: Tensor,
        chosen: Tensor,
        weights: Tensor,
        gate_up: ExpertWeights,
        down: ExpertWeights,
        kind: Activation,
        residual: Tensor | None,
    ) -> Tensor:
        """y[r] = residual[r] + sum_j weights[r, j] * gated_mlp of expert chosen[r, j] of x[r] -> (rows, outputs)."""
        ...

    def attention(
        self, q: Tensor, store: KVStore, rows: Rows, group: str, spec: AttentionSpec, sinks: Tensor | None = None
    ) -> Tensor:
        """Causal attention over the store, the rows of this step included (they are stored first).

        q (rows, heads, head_dim) -> (rows, heads * value_dim). A row sees the stored units of its sequence and its
        chain of parents within the step. sinks (heads,): one more logit in the softmax that carries no value.
        """
        ...

    def attention_packed(self, qkv: Tensor, rows: Rows, spec: AttentionSpec) -> Tensor:
        """Attention within each sequence of `rows.starts`, without a store, for encoders.

        qkv (rows, (heads + 2 * kv_heads) * head_dim): queries, keys, values -> (rows, heads * head_dim)."""
        ...

    def take_rows(self, x: Tensor, rows: Tensor) -> Tensor:
        """y[i] = x[rows[i]]: the rows that go on to the head. x (.., width), rows (n,) int64 -> (n, width)."""
        ...

    def mean_rows(self, x: Tensor, first: Tensor, last: Tensor) -> Tensor:
        """y[i] = the mean of the rows first[i] .. last[i] - 1, one or more, summed in float64 in their order.

        x (.., width), first, last (n,) int64 -> (n, width)."""
        ...

    def unit_rows(self, x: Tensor) -> Tensor:
        """y = x / max(||x||, 1e-12), the norm in float64 in the order of the numbers. x (rows, width) -> the same."""
        ...

    def argmax(self, x: Tensor) -> Tensor:
        """The place of the largest element of each row, the lowest one of equals; a NaN counts as the largest.

        x (rows, width) -> (rows,) int64."""
        ...

    def kv_copy(self, store: KVStore, sources: Tensor, targets: Tensor) -> None:
        """Copy whole pages, in the order given: copy on write."""
        ...

    def kv_move(self, store: KVStore, sources: Tensor, targets: Tensor) -> None:
        """Copy single slots: compact the accepted path of a draft tree. All reads happen before the first write."""
        ...

    def kv_rotate(self, store: KVStore, slots: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing) -> None:
        """Rotate stored keys in place by further angles: move reused text to other positions. cos, sin (slots, d).

        The turned key is rounded once more, in i8 with a new scale: by at most 1/254 of its largest element.
        """
        ...


def stored_weight(
    stored: Sequence[StoredMatrix],
    bias: Tensor | None = None,
    slices: Mapping[str, tuple[int, int]] | None = None,
    split: Split = "none",
) -> LinearWeight:
    """Matrices of the same inputs, one below the other, for `pack_linear`."""
    outputs, inputs = sum(matrix.outputs for matrix in stored), stored[0].inputs
    assert all(matrix.inputs == inputs for matrix in stored)
    return LinearWeight(torch.empty(0), bias, "stored", dict(slices or {}), split, outputs, inputs, tuple(stored))


def f32_weight(
    data: Tensor, bias: Tensor | None = None, slices: Mapping[str, tuple[int, int]] | None = None, split: Split = "none"
) -> LinearWeight:
    """A plain float32 weight. data (outputs, inputs)."""
    assert data.dim() == 2 and data.dtype == torch.float32
    return LinearWeight(data, bias, "f32", dict(slices or {}), split, data.shape[0], data.shape[1])
