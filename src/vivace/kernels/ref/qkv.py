"""Reference of `qkv_rope_store`: the composition of linear, rms_norm, rope and a store into pages."""

from __future__ import annotations

import torch
from torch import Tensor

from vivace.kernels.ops import GroupRows, KVStore, LinearWeight, Ops, QkvSpec
from vivace.kernels.ref.kv import write_slots


def qkv_rope_store(
    ops: Ops, x: Tensor, weight: LinearWeight, spec: QkvSpec, cos: Tensor, sin: Tensor, store: KVStore, rows: GroupRows
) -> Tensor:
    """q, k, v = split(x W^T + b); normalise and rotate q and k; store k and v at rows.slot.

    -> q (rows, heads, head_dim).
    """
    value_dim = store.values.shape[-1]
    widths = [spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim, spec.kv_heads * value_dim]
    assert weight.outputs == sum(widths), f"a fused qkv weight has {sum(widths)} outputs, not {weight.outputs}"
    q, k, v = torch.split(ops.linear(x, weight), widths, -1)
    q = q.reshape(-1, spec.heads, spec.head_dim)
    k = k.reshape(-1, spec.kv_heads, spec.head_dim)
    if spec.q_norm is not None:
        q = ops.rms_norm(q, spec.q_norm, spec.norm_eps)
    if spec.k_norm is not None:
        k = ops.rms_norm(k, spec.k_norm, spec.norm_eps)
    v = v.reshape(-1, spec.kv_heads, value_dim)
    write_slots(store, rows.slot, keys=ops.rope(k, cos, sin, spec.pairing), values=v)
    return ops.rope(q, cos, sin, spec.pairing)
