"""The `rows` mode: every operation whose rounding could depend on its neighbours, computed for one row a call.

A call sees one row of a fixed width, in fresh memory (so with one alignment), on one thread: its result cannot depend
on batch, chunk, page size or neighbours. Attention takes one query row over exactly the keys it sees, in order.
Operations that only copy, or round each product and sum by itself (embedding, rope, the store), stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from vivace.kernels.ops import Activation, AttentionSpec, ExpertWeights, KVStore, LinearWeight, RouteSpec, Rows
from vivace.kernels.ref import activation as ref_activation
from vivace.kernels.ref import experts as ref_experts
from vivace.kernels.ref import linear as ref_linear
from vivace.kernels.ref import norm as ref_norm
from vivace.kernels.ref.attention import (
    attend,
    depths,
    gather,
    has_bias,
    lowest_unit,
    packed_visibility,
    score_bias,
    split_qkv,
    visible_units,
)


def linear(x: Tensor, weight: LinearWeight) -> Tensor:
    return _each_row(x, lambda row: ref_linear.linear(row, weight), weight.outputs)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _each_row(x, lambda row: ref_norm.rms_norm(row, weight, eps), x.shape[-1])


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    return _each_row(x, lambda row: ref_norm.layer_norm(row, weight, bias, eps), x.shape[-1])


def activation(x: Tensor, kind: Activation) -> Tensor:
    return _each_row(x, lambda row: ref_activation.activation(row, kind), x.shape[-1])


def soft_cap(x: Tensor, cap: float) -> Tensor:
    return _each_row(x, lambda row: ref_activation.soft_cap(row, cap), x.shape[-1])


def route(logits: Tensor, spec: RouteSpec, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    if logits.shape[0] < 2:
        return ref_experts.route(logits, spec, bias)
    rows = [ref_experts.route(_fresh(logits, row), spec, bias) for row in range(logits.shape[0])]
    return torch.cat([chosen for chosen, _ in rows]), torch.cat([weights for _, weights in rows])


def grouped_linear(x: Tensor, chosen: Tensor, weights: ExpertWeights) -> Tensor:
    """One row for one expert a call."""
    y = x.new_empty(*chosen.shape, weights.experts[0].outputs)
    for row, experts in enumerate(chosen.tolist()):
        for place, expert in enumerate(experts):
            source = x[row, place] if x.dim() == 3 else x[row]
            y[row, place] = ref_linear.linear(source.clone()[None], weights.experts[expert])[0]
    return y


def attention(
    q: Tensor, store: KVStore, rows: Rows, group: str, spec: AttentionSpec, sinks: Tensor | None = None
) -> Tensor:
    """Attention over the store, one query row a call. q (rows, heads, head_dim) -> (rows, heads * value_dim)."""
    parts = []
    for sequence in range(len(rows.context)):
        first, last = rows.starts[sequence], rows.starts[sequence + 1]
        if first == last:
            continue
        low = lowest_unit(rows, sequence, spec)
        keys, values = gather(store, rows.groups[group], sequence, low, rows.context[sequence] + last - first)
        for row in range(last - first):
            seen = visible_units(rows, sequence, row, spec)
            k, v = _take(keys, seen, low), _take(values, seen, low)
            parts.append(
                attend(_fresh(q, first + row), k, v, None, spec, sinks, _bias(rows, sequence, row, seen, spec))
            )
    return _joined(parts, q, store.values.shape[-1], spec)


def attention_packed(qkv: Tensor, rows: Rows, spec: AttentionSpec) -> Tensor:
    """Attention within each sequence, one query row a call. qkv (rows, all heads * head_dim)."""
    q, k, v = split_qkv(qkv, spec)
    parts = []
    for first, last in pairwise(rows.starts):
        if first == last:
            continue
        keys, values, visible = k[first:last].clone(), v[first:last].clone(), packed_visibility(last - first, spec)
        for row in range(last - first):
            seen = slice(None) if visible is None else visible[row]
            units = torch.arange(last - first)
            bias = score_bias(units[row : row + 1], units[seen], spec) if has_bias(spec) else None
            parts.append(attend(_fresh(q, first + row), keys[seen], values[seen], None, spec, None, bias))
    return _joined(parts, q, v.shape[-1], spec)


def _each_row(x: Tensor, call: Callable[[Tensor], Tensor], width: int) -> Tensor:
    """Apply `call` to each row of x (rows, ...), copied to fresh memory, and join the results."""
    if x.shape[0] == 0:
        return x.new_empty(*x.shape[:-1], width)
    if x.shape[0] == 1:
        return call(x.clone(memory_format=torch.contiguous_format))
    return torch.cat([call(row.clone(memory_format=torch.contiguous_format)) for row in torch.split(x, 1)])


def _fresh(x: Tensor, row: int) -> Tensor:
    return x[row : row + 1].clone(memory_format=torch.contiguous_format)


def _take(stored: Tensor, seen: range | list[int], low: int) -> Tensor:
    """The seen units, in order, in fresh memory. stored holds the units from `low` on."""
    if isinstance(seen, range):
        return stored[seen.start - low : seen.stop - low].clone()
    return stored[torch.tensor(seen) - low]


def _bias(rows: Rows, sequence: int, row: int, seen: range | list[int], spec: AttentionSpec) -> Tensor | None:
    if not has_bias(spec):
        return None
    units = depths(rows, sequence)
    own = rows.context[sequence] + row
    return score_bias(units[own : own + 1], units[list(seen)], spec)


def _joined(parts: list[Tensor], q: Tensor, value_dim: int, spec: AttentionSpec) -> Tensor:
    return torch.cat(parts).flatten(1) if parts else q.new_empty(q.shape[0], spec.heads * value_dim)
