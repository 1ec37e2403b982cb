"""Reference of `attention` and `attention_packed`: explicit scores, softmax and weighted sum, sequence by sequence.

For query head h with key head g: p = softmax(scale q_h k_g^T, capped, biased, masked), y_h = p v_g (Vaswani et al.,
arXiv 1706.03762, section 3.2; grouped heads: arXiv 2305.13245).
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from vivace.kernels.ops import AttentionSpec, GroupRows, KVStore, Rows
from vivace.kernels.ref.kv import read_slots


def attention(
    q: Tensor, store: KVStore, rows: Rows, group: str, spec: AttentionSpec, sinks: Tensor | None = None
) -> Tensor:
    """Attention over the store. q (rows, heads, head_dim) -> (rows, heads * value_dim)."""
    y = q.new_empty(q.shape[0], spec.heads, store.values.shape[-1])
    for sequence in range(len(rows.context)):
        first, last = rows.starts[sequence], rows.starts[sequence + 1]
        if first < last:
            low = lowest_unit(rows, sequence, spec)
            keys, values = gather(store, rows.groups[group], sequence, low, rows.context[sequence] + last - first)
            visible, bias = visibility(rows, sequence, low, spec), None
            if has_bias(spec):
                units = depths(rows, sequence)
                bias = score_bias(units[rows.context[sequence] :], units[low:], spec)
            y[first:last] = attend(q[first:last], keys, values, visible, spec, sinks, bias)
    return y.flatten(1)


def attention_packed(qkv: Tensor, rows: Rows, spec: AttentionSpec) -> Tensor:
    """Attention within each sequence, without a store. qkv (rows, (heads + 2 * kv_heads) * head_dim)."""
    q, k, v = split_qkv(qkv, spec)
    y = torch.empty_like(q)
    for first, last in pairwise(rows.starts):
        if first < last:
            visible, units = packed_visibility(last - first, spec), torch.arange(last - first)
            bias = score_bias(units, units, spec) if has_bias(spec) else None
            y[first:last] = attend(q[first:last], k[first:last], v[first:last], visible, spec, None, bias)
    return y.flatten(1)


def split_qkv(qkv: Tensor, spec: AttentionSpec) -> tuple[Tensor, Tensor, Tensor]:
    """The queries (rows, heads, head_dim), keys and values (rows, kv_heads, head_dim) of a fused projection."""
    sizes = [count * spec.head_dim for count in (spec.heads, spec.kv_heads, spec.kv_heads)]
    parts = torch.split(qkv, sizes, 1)
    q, k, v = (part.reshape(len(part), part.shape[1] // spec.head_dim, spec.head_dim) for part in parts)
    return q, k, v


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: Tensor | None,
    spec: AttentionSpec,
    sinks: Tensor | None,
    bias: Tensor | None = None,
) -> Tensor:
    """q (n, heads, dim), k (m, kv_heads, dim), v (m, kv_heads, value_dim), visible (n, m) bool or None: all visible.
    bias (heads, n, m) or None.

    Returns (n, heads, value_dim). Heads that share a key head are stacked, so that each key head is one product.
    """
    n, m, kv_heads = q.shape[0], k.shape[0], spec.kv_heads
    stacked = q.view(n, kv_heads, -1, q.shape[-1]).permute(1, 2, 0, 3).flatten(1, 2)  # (kv_heads, group * n, dim)
    scores = torch.matmul(stacked, k.permute(1, 2, 0)) * spec.scale
    if spec.soft_cap is not None:
        scores = torch.tanh(scores / spec.soft_cap) * spec.soft_cap
    scores = scores.view(spec.heads, n, m)
    if bias is not None:
        scores = scores + bias
    if visible is not None:
        scores = scores.masked_fill(~visible.to(q.device), float("-inf"))
    if sinks is not None:
        scores = torch.cat((scores, sinks.view(-1, 1, 1).expand(-1, n, 1)), -1)
    weights = torch.softmax(scores, -1)[..., :m].reshape(kv_heads, -1, m)
    return torch.matmul(weights, v.permute(1, 0, 2)).view(spec.heads, n, -1).transpose(0, 1)


def has_bias(spec: AttentionSpec) -> bool:
    return spec.slopes is not None or spec.biases is not None


def score_bias(own: Tensor, units: Tensor, spec: AttentionSpec) -> Tensor:
    """What is added to scores of rows at these units, (n,), over units (m,): (heads, n, m)."""
    distance = units - own.view(-1, 1)
    bias = torch.zeros(spec.heads, *distance.shape)
    if spec.slopes is not None:
        bias = bias + spec.slopes.view(-1, 1, 1) * distance
    if spec.biases is not None:
        reach = spec.biases.shape[1] // 2
        bias = bias + spec.biases[:, distance.clamp(-reach, reach) + reach]
    return bias


def depths(rows: Rows, sequence: int) -> Tensor:
    """The place of each unit of a sequence in its branch: its number, but for the rows of a draft tree."""
    first, context = rows.starts[sequence], rows.context[sequence]
    places = list(range(context + rows.starts[sequence + 1] - first))
    if not rows.is_chain:
        for row, parent in enumerate(rows.parent[first : rows.starts[sequence + 1]].tolist()):
            places[context + row] = context if parent < 0 else places[context + parent - first] + 1
    return torch.tensor(places)


def gather(store: KVStore, rows: GroupRows, sequence: int, low: int, high: int) -> tuple[Tensor, Tensor]:
    """Keys and values of the units low .. high - 1 of a sequence, in order, as float32 (units, kv_heads, dim)."""
    units = torch.arange(low, high, device=rows.table.device)
    pages = rows.table[sequence, units // rows.page_size].long()
    return read_slots(store, pages * rows.page_size + units % rows.page_size)


def lowest_unit(rows: Rows, sequence: int, spec: AttentionSpec) -> int:
    """The first unit that any row of the sequence sees; units before it may stand in pages that are given back."""
    if spec.window is None:
        return 0
    return max(0, rows.context[sequence] + 1 - spec.window)


def visibility(rows: Rows, sequence: int, low: int, spec: AttentionSpec) -> Tensor | None:
    """Which units each row of a sequence sees: (rows of the sequence, units from low on) bool, None if all see all."""
    context, count = rows.context[sequence], rows.starts[sequence + 1] - rows.starts[sequence]
    if rows.is_chain or not spec.is_causal:
        if count == 1 or (not spec.is_causal and spec.window is None):
            return None
        return _in_reach(torch.arange(context, context + count), torch.arange(low, context + count), spec)
    visible = torch.zeros(count, context + count - low, dtype=torch.bool)
    for row in range(count):
        visible[row, torch.tensor(visible_units(rows, sequence, row, spec)) - low] = True
    return visible


def visible_units(rows: Rows, sequence: int, row: int, spec: AttentionSpec) -> range | list[int]:
    """The units that the row-th row of a sequence sees, in order: a range, or in a draft tree a list."""
    first, context = rows.starts[sequence], rows.context[sequence]
    if rows.is_chain or not spec.is_causal:
        total, unit = context + rows.starts[sequence + 1] - first, context + row
        reach = total if spec.window is None else spec.window
        return range(max(0, unit - reach + 1), unit + 1 if spec.is_causal else min(total, unit + reach))
    chain = []
    ancestor = first + row
    while ancestor >= 0:
        chain.append(context + ancestor - first)
        ancestor = int(rows.parent[ancestor])
    units = [*range(context), *reversed(chain)]
    return units if spec.window is None else units[-spec.window :]


def packed_visibility(count: int, spec: AttentionSpec) -> Tensor | None:
    """Which rows see which within one packed sequence: (count, count) bool, None if all see all."""
    if not spec.is_causal and spec.window is None:
        return None
    return _in_reach(torch.arange(count), torch.arange(count), spec)


def _in_reach(queries: Tensor, units: Tensor, spec: AttentionSpec) -> Tensor:
    """Which units the rows at the given units see, without a tree; without causality as far ahead as behind."""
    behind = queries.view(-1, 1) - units
    reach = len(units) if spec.window is None else spec.window
    return (behind < reach) & (behind >= 0 if spec.is_causal else behind > -reach)
