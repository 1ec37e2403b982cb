"""Norms, activations and the coarse operations of every set: right, and the same bits for a row in any batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import get_args

import pytest
import torch
from torch import Tensor

from tests.kernels.steps import GROUP, cut_step, random_past
from vivace.kernels.ops import Activation, AttentionSpec, KVStore, QkvSpec, f32_weight
from vivace.kernels.select import BoundOps

KINDS: tuple[Activation, ...] = get_args(Activation)
# Elementwise functions are good to about 4 units in the last place; norms sum up to 600 squares pairwise.
TOLERANCE = 1e-6

EXACT: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: x.clamp(min=0),
    "relu2": lambda x: x.clamp(min=0) ** 2,
    "tanh": torch.tanh,
}


@pytest.mark.parametrize("width", [1, 2, 15, 16, 17, 64, 577])
def test_rms_norm_matches_float64(ops: BoundOps, width: int) -> None:
    x, w = _randn(5, width), _randn(width)
    wide = x.double()
    expected = wide / torch.sqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5) * w.double()
    _assert_close(ops.rms_norm(x, w, 1e-5), expected)


@pytest.mark.parametrize("width", [2, 15, 16, 17, 64, 577])
@pytest.mark.parametrize("has_bias", [False, True])
def test_layer_norm_matches_float64(ops: BoundOps, width: int, has_bias: bool) -> None:
    x, w, b = _randn(5, width) + 3, _randn(width), _randn(width) if has_bias else None
    wide = x.double()
    centred = wide - wide.mean(-1, keepdim=True)
    expected = centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5) * w.double()
    # Centring around 3 costs the last bits of x: the error grows by |mean| / deviation.
    _assert_close(ops.layer_norm(x, w, b, 1e-5), expected if b is None else expected + b.double(), 1e-5)


def test_norms_take_any_leading_dimensions(ops: BoundOps) -> None:
    x, w = _randn(3, 4, 20), _randn(20)
    assert torch.equal(ops.rms_norm(x, w, 1e-6)[1], ops.rms_norm(x[1:2].clone(), w, 1e-6)[0])
    assert ops.rms_norm(x[:0], w, 1e-6).shape == (0, 4, 20)
    assert ops.layer_norm(x, w, None, 1e-6).shape == x.shape


@pytest.mark.parametrize("kind", KINDS)
def test_activations_match_float64(ops: BoundOps, kind: Activation) -> None:
    x = torch.cat([torch.linspace(-20, 20, 4001), torch.tensor([0.0, -0.0, 1e-30, -1e-30, 88.0, -88.0, 200.0, -200.0])])
    _assert_close(ops.activation(x.view(1, -1), kind), EXACT[kind](x.double()).view(1, -1))


@pytest.mark.parametrize("kind", KINDS)
def test_activations_pass_nan_on(ops: BoundOps, kind: Activation) -> None:
    y = ops.activation(torch.tensor([[1.0, float("nan"), 2.0]]), kind)
    assert torch.isnan(y).tolist() == [[False, True, False]]


def test_soft_cap_matches_float64(ops: BoundOps) -> None:
    x = _randn(3, 50) * 40
    _assert_close(ops.soft_cap(x, 30.0), 30 * torch.tanh(x.double() / 30))


@pytest.mark.parametrize("width", [1, 19, 64, 301])
def test_a_row_is_the_same_bits_in_any_batch(invariant_ops: BoundOps, width: int) -> None:
    ops, x, w = invariant_ops, _randn(40, width), _randn(width)
    calls: list[Callable[[Tensor], Tensor]] = [lambda t: ops.rms_norm(t, w, 1e-6), lambda t: ops.soft_cap(t, 5.0)]
    calls += [lambda t: ops.layer_norm(t, w, w, 1e-6)]
    calls += [lambda t, kind=kind: ops.activation(t, kind) for kind in KINDS]
    for call in calls:
        whole = call(x)
        for first, last in ((0, 1), (39, 40), (3, 6), (5, 40)):
            assert torch.equal(call(x[first:last]), whole[first:last])


@pytest.mark.parametrize("kind", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("has_residual", [False, True])
def test_gated_mlp_is_its_composition(ops: BoundOps, kind: Activation, has_residual: bool) -> None:
    x, residual = _randn(5, 24), _randn(5, 24) if has_residual else None
    gate, up, down = _randn(33, 24), _randn(33, 24), _randn(24, 33)
    fused = f32_weight(torch.cat([gate, up]), slices={"gate": (0, 33), "up": (33, 66)})
    y = ops.gated_mlp(x, ops.pack_linear(fused), ops.pack_linear(f32_weight(down)), kind, residual)
    hidden = EXACT[kind](x.double() @ gate.double().t()) * (x.double() @ up.double().t())
    expected = hidden @ down.double().t() + (0 if residual is None else residual.double())
    _assert_close(y, expected, 1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("has_norms", [False, True])
def test_qkv_rope_store_writes_rotated_keys_and_values(ops: BoundOps, pairing: str, has_norms: bool) -> None:
    spec = AttentionSpec(heads=4, kv_heads=2, head_dim=8, scale=1.0)
    _, store, rows = cut_step(random_past((6, 3), spec, value_dim=5), [(0, 2, 4), (1, 0, 3)], page_size=4)
    norms = (_randn(8), _randn(8, seed=1)) if has_norms else (None, None)
    qkv = QkvSpec(4, 2, 8, *norms, norm_eps=1e-5, pairing=pairing)  # type: ignore[arg-type]
    x, weight = _randn(7, 16), _randn(4 * 8 + 2 * 8 + 2 * 5, 16)
    angle = _randn(7, 3).double()  # 6 of 8 dims are rotated
    before = KVStore(store.keys.clone(), store.values.clone())
    packed = ops.pack_linear(f32_weight(weight))
    q = ops.qkv_rope_store(x, packed, qkv, angle.cos().float(), angle.sin().float(), store, rows.groups[GROUP])
    parts = (x.double() @ weight.double().t()).split([32, 16, 10], -1)
    expected_q, expected_k = (
        _rotated(_normed(part.view(7, -1, 8), norm, 1e-5), angle, pairing)
        for part, norm in zip(parts, norms, strict=False)
    )
    slot = rows.groups[GROUP].slot
    _assert_close(q, expected_q, 1e-5)
    _assert_close(store.keys.view(-1, 2, 8)[slot], expected_k, 1e-5)
    _assert_close(store.values.view(-1, 2, 5)[slot], parts[2].view(7, 2, 5), 1e-5)
    others = torch.ones(store.keys.shape[0] * 4, dtype=torch.bool).index_fill(0, slot, False)
    assert torch.equal(store.keys.view(-1, 16)[others].isnan(), before.keys.view(-1, 16)[others].isnan())


def test_kv_copy_copies_pages_in_order(ops: BoundOps) -> None:
    store = _numbered_store()
    ops.kv_copy(store, torch.tensor([1, 2]), torch.tensor([2, 3]))
    assert store.keys[:, 0, 0, 0].tolist() == [0, 4, 4, 4]
    assert store.values[:, 0, 0, 0].tolist() == [0, 4, 4, 4]


def test_kv_move_reads_all_before_it_writes(ops: BoundOps) -> None:
    store = _numbered_store()
    ops.kv_move(store, torch.tensor([5, 6, 7]), torch.tensor([6, 7, 5]))
    assert store.keys.view(-1)[4:9].tolist() == [4, 7, 5, 6, 8]


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_kv_rotate_turns_stored_keys_further(ops: BoundOps, pairing: str) -> None:
    keys, angle = _randn(2, 4, 3, 8), _randn(3, 4).double()
    store, slots = KVStore(keys.clone(), keys.clone()), torch.tensor([6, 1, 3])
    ops.kv_rotate(store, slots, angle.cos().float(), angle.sin().float(), pairing)  # type: ignore[arg-type]
    expected = keys.view(8, 3, 8).double()
    expected[slots] = _rotated(expected[slots], angle, pairing)
    _assert_close(store.keys.view(8, 3, 8), expected)
    assert torch.equal(store.values, keys)


def _rotated(x: Tensor, angle: Tensor, pairing: str) -> Tensor:
    """Each pair as a complex number times e^(i angle). x (rows, heads, dim), angle (rows, d)."""
    d, y = angle.shape[-1], x.clone()
    first, second = (slice(0, d), slice(d, 2 * d)) if pairing == "half" else (slice(0, 2 * d, 2), slice(1, 2 * d, 2))
    turned = torch.complex(x[..., first], x[..., second]) * torch.polar(torch.ones_like(angle), angle).unsqueeze(1)
    y[..., first], y[..., second] = turned.real, turned.imag
    return y


def _normed(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    return x if weight is None else x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight.double()


def _numbered_store() -> KVStore:
    numbers = torch.arange(16.0).view(4, 4, 1, 1)
    return KVStore(numbers.clone(), numbers.clone())


def _randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def _assert_close(actual: Tensor, expected: Tensor, tolerance: float = TOLERANCE) -> None:
    torch.testing.assert_close(actual.double(), expected, atol=tolerance, rtol=tolerance)
