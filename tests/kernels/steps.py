"""Random steps for tests of operations: stores with pages in any order, rows, and what attention should give."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from vivace.kernels.ops import AttentionSpec, GroupRows, KVStore, Rows, StoreShape
from vivace.kernels.ref.kv import write_slots
from vivace.kernels.store import plain_store

GROUP = "full"


@dataclass(frozen=True)
class Past:
    """All units of some sequences, from which any step is cut: per sequence (units, heads, dim)."""

    queries: list[Tensor]
    keys: list[Tensor]
    values: list[Tensor]


def random_past(lengths: Sequence[int], spec: AttentionSpec, value_dim: int | None = None, seed: int = 0) -> Past:
    """Queries, keys and values of sequences of these lengths."""
    generator = torch.Generator().manual_seed(seed)

    def draw(heads: int, dim: int) -> list[Tensor]:
        return [torch.randn(length, heads, dim, generator=generator) for length in lengths]

    return Past(
        draw(spec.heads, spec.head_dim),
        draw(spec.kv_heads, spec.head_dim),
        draw(spec.kv_heads, value_dim or spec.head_dim),
    )


def packed_step(past: Past) -> tuple[Tensor, Rows]:
    """All units of all sequences as one step without a store -> fused queries, keys and values (rows, width), rows."""
    qkv = torch.cat([torch.cat(part).flatten(1) for part in (past.queries, past.keys, past.values)], 1)
    lengths = torch.tensor([len(queries) for queries in past.queries])
    starts = (0, *lengths.cumsum(0).tolist())
    nothing = torch.zeros(0, dtype=torch.int32)
    return qkv, Rows(nothing, nothing, nothing, starts, (0,) * len(lengths), nothing, {})


def cut_step(
    past: Past, spans: Sequence[tuple[int, int, int]], page_size: int, *, seed: int = 0, parents: Sequence[int] = ()
) -> tuple[Tensor, KVStore, Rows]:
    """A step in which sequence s computes units start .. start + count - 1, for each (s, start, count) of `spans`.

    Pages stand in random order; all that the step may not read is NaN. -> q (rows, heads, dim), store, rows.
    """
    kv_heads, key_dim, value_dim = past.keys[0].shape[1], past.keys[0].shape[2], past.values[0].shape[2]
    pages = [math.ceil((start + count) / page_size) for _, start, count in spans]
    order = (torch.randperm(sum(pages), generator=torch.Generator().manual_seed(seed)) + 1).tolist()
    keys = torch.full((sum(pages) + 1, page_size, kv_heads, key_dim), float("nan"))
    values = torch.full((sum(pages) + 1, page_size, kv_heads, value_dim), float("nan"))
    table = torch.zeros(len(spans), max(pages), dtype=torch.int32)
    queries, slots, starts = [], [], [0]
    for row, ((sequence, start, count), needed) in enumerate(zip(spans, pages, strict=True)):
        own = [order.pop() for _ in range(needed)]
        table[row, :needed] = torch.tensor(own, dtype=torch.int32)
        units = torch.arange(start + count)
        slot = torch.tensor(own)[units // page_size] * page_size + units % page_size
        keys.view(-1, kv_heads, key_dim)[slot] = past.keys[sequence][: start + count]
        values.view(-1, kv_heads, value_dim)[slot] = past.values[sequence][: start + count]
        queries.append(past.queries[sequence][start : start + count])
        slots.append(slot[start:])
        starts.append(starts[-1] + count)
    groups = {GROUP: GroupRows(torch.cat(slots), table, page_size)}
    return (
        torch.cat(queries),
        KVStore(keys, values),
        make_rows(starts, [start for _, start, _ in spans], groups, parents),
    )


def stored_as(name: str, keys: Tensor, values: Tensor) -> KVStore:
    """A plain store of this format that holds keys and values, both (pages, page_size, kv_heads, dim)."""
    shape = StoreShape(*keys.shape[:3], keys.shape[3], values.shape[3])
    store = plain_store(shape, name, torch.device("cpu"))
    write_slots(
        store, torch.arange(shape.pages * shape.page_size), keys=keys.flatten(0, 1), values=values.flatten(0, 1)
    )
    return store


def assert_equal_stores(found: KVStore, expected: KVStore) -> None:
    """The same bits in all tensors."""
    assert found.format == expected.format
    for name in ("keys", "values", "key_scales", "value_scales"):
        part, other = getattr(found, name), getattr(expected, name)
        assert (part is None) == (other is None), name
        assert part is None or torch.equal(part, other), name


def make_rows(
    starts: Sequence[int], context: Sequence[int], groups: dict[str, GroupRows], parents: Sequence[int] = ()
) -> Rows:
    """Rows of a step: a chain, unless `parents` gives the parent of each row."""
    counts = [last - first for first, last in pairwise(starts)]
    total = starts[-1]
    chain = [row - 1 if row not in starts else -1 for row in range(total)]
    return Rows(
        position=torch.cat([torch.arange(c, c + n) for c, n in zip(context, counts, strict=True)]).view(-1, 1),
        parent=torch.tensor(parents or chain, dtype=torch.int32),
        sequence=torch.repeat_interleave(torch.arange(len(counts), dtype=torch.int32), torch.tensor(counts)),
        starts=tuple(starts),
        context=tuple(context),
        variant=torch.zeros(total, dtype=torch.int32),
        groups=groups,
        is_chain=not parents,
    )


def expected_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    spec: AttentionSpec,
    sinks: Tensor | None = None,
    own: int | None = None,
) -> Tensor:
    """One query (heads, dim) over exactly the keys and values it sees, in float64 -> (heads * value_dim,).

    own: which of the keys is the query's; the last one if nothing is said."""
    results = []
    distances = [unit - (len(keys) - 1 if own is None else own) for unit in range(len(keys))]
    for head in range(spec.heads):
        shared = head * spec.kv_heads // spec.heads
        scores = spec.scale * (keys[:, shared].double() @ q[head].double())
        if spec.soft_cap is not None:
            scores = spec.soft_cap * torch.tanh(scores / spec.soft_cap)
        if spec.slopes is not None:
            scores = scores + torch.tensor([float(spec.slopes[head]) * distance for distance in distances]).double()
        if spec.biases is not None:
            reach = spec.biases.shape[1] // 2
            clamped = [min(reach, max(-reach, distance)) + reach for distance in distances]
            scores = scores + spec.biases[head, clamped].double()
        weights = scores.exp()
        total = weights.sum() + (0 if sinks is None else sinks[head].double().exp())
        results.append((weights / total) @ values[:, shared].double())
    return torch.cat(results)
