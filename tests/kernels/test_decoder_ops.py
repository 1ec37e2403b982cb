"""Native operations of a decoder's step are the compositions that they replace, bit for bit; indices are checked."""

from __future__ import annotations

from functools import partial
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from tests.kernels.conftest import ISAS, resolve_set
from tests.kernels.steps import assert_equal_stores, stored_as
from vivace.kernels.cpu.bind import NativeOps
from vivace.kernels.layout import pack_panels
from vivace.kernels.ops import Activation, GroupRows, KVStore, LinearWeight, Pairing, QkvSpec, StoreShape, f32_weight
from vivace.kernels.ref import choose, embedding, kv, mlp, qkv, rope
from vivace.kernels.ref import linear as ref_linear
from vivace.kernels.select import BoundOps
from vivace.kernels.store import STORE_DTYPES, plain_store

pytestmark = pytest.mark.usefixtures("needs_native")


@pytest.fixture(params=[(isa, threads) for isa in ISAS for threads in (1, 2)], ids=str)
def native(request: pytest.FixtureRequest) -> NativeOps:
    return NativeOps(*request.param)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def weight(outputs: int, inputs: int, slices: dict[str, tuple[int, int]] | None = None) -> LinearWeight:
    return pack_panels(f32_weight(randn(outputs, inputs, seed=outputs), slices=slices))


def composed(native: NativeOps) -> Any:
    """The fine operations of the set; its coarse ones are the reference's compositions of them."""
    ops = resolve_set(f"native-{native.isa}")
    ops.rope = rope.rope  # type: ignore[method-assign]
    return ops


@pytest.mark.parametrize("format_name", STORE_DTYPES)
@pytest.mark.parametrize("pairing", get_args(Pairing))
@pytest.mark.parametrize(
    ("rows", "dim", "angles", "has_norms"), [(1, 64, 32, False), (5, 24, 10, True), (70, 8, 4, True)]
)
def test_qkv_rope_store_is_its_composition(
    native: NativeOps, format_name: str, pairing: Pairing, rows: int, dim: int, angles: int, has_norms: bool
) -> None:
    norms = (randn(dim, seed=1), randn(dim, seed=2)) if has_norms else (None, None)
    spec = QkvSpec(6, 2, dim, *norms, pairing=pairing)
    x, fused, cos, sin = randn(rows, 48), weight(10 * dim, 48), randn(rows, angles, seed=3), randn(rows, angles, seed=4)
    where = GroupRows(torch.randperm(160, generator=torch.Generator().manual_seed(5))[:rows], torch.zeros(1, 1), 16)
    shape = StoreShape(10, 16, 2, dim, dim)
    found, expected = (plain_store(shape, format_name, torch.device("cpu")) for _ in range(2))
    q = native.qkv_rope_store(x, fused, spec, cos, sin, found, where)
    assert torch.equal(q, qkv.qkv_rope_store(composed(native), x, fused, spec, cos, sin, expected, where))
    assert_equal_stores(found, expected)


@pytest.mark.parametrize("kind", get_args(Activation))
@pytest.mark.parametrize(("rows", "inner"), [(1, 1536), (7, 5), (33, 5000)])
def test_gated_mlp_is_its_composition(native: NativeOps, kind: Activation, rows: int, inner: int) -> None:
    x, down = randn(rows, 40), weight(40, inner)
    gate_up = weight(2 * inner, 40, {"up": (0, inner), "gate": (inner, 2 * inner)})
    for residual in (None, randn(rows, 40, seed=6)):
        expected = mlp.gated_mlp(composed(native), x, gate_up, down, kind, residual)
        assert torch.equal(native.gated_mlp(x, gate_up, down, kind, residual), expected)


@pytest.mark.parametrize("pairing", get_args(Pairing))
@pytest.mark.parametrize(("dim", "angles"), [(64, 32), (80, 20), (7, 3), (2, 1)])
def test_rope_is_the_reference(native: NativeOps, pairing: Pairing, dim: int, angles: int) -> None:
    x, cos, sin = randn(50, 3, dim), randn(50, angles, seed=1), randn(50, angles, seed=2)
    assert torch.equal(native.rope(x, cos, sin, pairing), rope.rope(x, cos, sin, pairing))


def test_copies_and_sums_are_the_reference(native: NativeOps) -> None:
    table, ids = weight(50, 33), torch.tensor([49, 0, 7, 49])
    for scale in (1.0, 5.5):
        assert torch.equal(native.embedding(ids, table, scale), embedding.embedding(ids, table, scale))
    x, y = randn(300, 70), randn(300, 70, seed=1)
    assert torch.equal(native.add(x, y), ref_linear.add(x, y))
    rows = torch.tensor([299, 3, 3])
    assert torch.equal(native.take_rows(x, rows), choose.take_rows(x, rows))


@pytest.mark.parametrize("width", [1, 5, 16, 1000, 1024, 5000])
def test_argmax_is_the_lowest_place_of_the_largest(native: NativeOps, width: int) -> None:
    x = torch.randint(-9, 9, (40, width), generator=torch.Generator().manual_seed(width)).float()
    x[1], x[2, width // 2], x[3], x[4, -1] = -torch.inf, torch.inf, torch.nan, torch.nan
    x[5, :] = torch.linspace(0, 1, width)
    assert torch.equal(native.argmax(x), torch.from_numpy(x.numpy().argmax(-1)))


@pytest.mark.parametrize("store_format", STORE_DTYPES)
def test_stores_are_copied_moved_and_turned_as_the_reference_does(native: NativeOps, store_format: str) -> None:
    stores = [stored_as(store_format, randn(9, 4, 3, 10), randn(9, 4, 3, 6, seed=1)) for _ in range(2)]
    slots, cos, sin = torch.tensor([3, 4, 30]), randn(3, 4, seed=2), randn(3, 4, seed=3)
    calls = [
        ("kv_copy", torch.tensor([1, 2, 3]), torch.tensor([2, 3, 4])),
        ("kv_move", torch.tensor([5, 6, 7]), torch.tensor([6, 7, 5])),
        ("kv_rotate", slots, cos, sin, "half"),
    ]
    for name, *arguments in calls:
        getattr(native, name)(stores[0], *arguments)
        getattr(kv, name)(stores[1], *arguments)
        assert_equal_stores(*stores)


def test_half_precision_rounds_as_torch_does() -> None:
    # Halfway between two halves, around every limit, of every size: each number is stored once as a value.
    bits = torch.randint(-(2**31), 2**31, (200_000,), generator=torch.Generator().manual_seed(9), dtype=torch.int64)
    x = bits.to(torch.int32).view(torch.float32)
    ties = torch.arange(0, 2**16, dtype=torch.int32).to(torch.int16).view(torch.float16).float()
    x = torch.cat(
        [x, ties, ties * (1 + 2.0**-11), ties * (1 + 3 * 2.0**-12), torch.tensor([65519.0, 65520.0, 2.0**-25])]
    )
    x = x[x.isfinite()]
    identity, empty = QkvSpec(1, 1, 2), torch.zeros(len(x), 0)
    fused = pack_panels(f32_weight(torch.tensor([[0.0], [0.0], [0.0], [0.0], [1.0], [0.0]])))
    for name, dtype in STORE_DTYPES.items():
        if name == "i8":
            continue
        store = KVStore(*(torch.zeros(1, len(x), 1, 2, dtype=dtype) for _ in "kv"), name)
        where = GroupRows(torch.arange(len(x)), torch.zeros(1, 1), len(x))
        NativeOps(None, 1).qkv_rope_store(x[:, None], fused, identity, empty, empty, store, where)
        assert torch.equal(store.values[0, :, 0, 0], x.to(dtype))


def test_bytes_are_rounded_as_the_reference_does() -> None:
    """Vectors of every size, with ties, zeros, sizes below any normal scale, NaN and infinity."""
    x = randn(4000, 48) * torch.logspace(-45, 38, 4000)[:, None]
    x[:200, 5:] = (torch.arange(200)[:, None] - 100.0) / 2  # largest 127: halves are ties
    x[:200, 4] = 127.0
    x[200], x[201], x[202, 3], x[203, 3], x[204, 3] = 0.0, -0.0, torch.nan, torch.inf, -torch.inf
    identity, empty, slots = QkvSpec(1, 1, 16), torch.zeros(len(x), 0), torch.arange(len(x))
    found, expected = (plain_store(StoreShape(1, len(x), 1, 16, 16), "i8", torch.device("cpu")) for _ in range(2))
    where = GroupRows(slots, torch.zeros(1, 1), len(x))
    fused = pack_panels(f32_weight(torch.eye(48)))
    x[202:205] = torch.where(x[202:205].isfinite(), 0.0, x[202:205])  # a matrix of ones and zeros spreads NaN
    native = NativeOps(None, 1)
    native.qkv_rope_store(x, fused, identity, empty, empty, found, where)
    _, keys, values = native.linear(x, fused)[:, None].split(16, -1)
    kv.write_slots(expected, slots, keys=keys, values=values)
    assert torch.equal(found.keys, expected.keys)
    assert torch.equal(found.values, expected.values)
    for scale, other in ((found.key_scales, expected.key_scales), (found.value_scales, expected.value_scales)):
        assert scale is not None and other is not None
        assert torch.equal(scale.view(torch.int32), other.view(torch.int32))
        assert scale.isnan().sum() >= 3 and (scale == 0).sum() > 100


def test_bytes_are_within_half_a_code() -> None:
    x = randn(500, 3, 64) * torch.logspace(-30, 30, 500)[:, None, None]
    codes, scale = kv.round_to_bytes(x)
    assert codes.abs().amax() == 127
    error = (codes * scale[..., None] - x).abs().amax(-1)
    assert (error <= scale * (0.5 + 1e-4)).all()


def test_angles_are_exact_to_half_a_unit_and_the_same_bits_everywhere() -> None:
    position = torch.cat([torch.arange(0, 3000), torch.randint(0, 2**18, (3000,))])[:, None]
    frequencies = 10000.0 ** -(torch.arange(0, 64, 2) / 64)[None]
    variant = torch.zeros(len(position), dtype=torch.int32)
    calls = [NativeOps(isa, threads).rope_angles for isa in ISAS for threads in (1, 2)]
    results = [call(position, variant, frequencies, 1.0) for call in calls]
    assert all(torch.equal(cos, results[0][0]) and torch.equal(sin, results[0][1]) for cos, sin in results)
    angle = (position.float() * frequencies).double()
    # Half a unit in the last place of a number below 1 is 2^-25; the rest is the error of the double.
    assert (results[0][0] - angle.cos()).abs().max() <= 2.0**-25 + 1e-11
    assert (results[0][1] - angle.sin()).abs().max() <= 2.0**-25 + 1e-11


def test_angles_follow_the_variant_of_their_row(native: NativeOps) -> None:
    frequencies, variant = torch.tensor([[1.0, 0.5], [0.25, 0.125]]), torch.tensor([1, 0, 1], dtype=torch.int32)
    position = torch.tensor([[4, 0], [4, 0], [9, 0]])
    cos, sin = native.rope_angles(position, variant, frequencies, 2.0)
    expected = rope.rope_angles(position, variant, frequencies, 2.0)
    torch.testing.assert_close(
        (cos, sin), expected, rtol=0, atol=2.0**-23
    )  # two correctly rounded results differ by this


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda ops: ops.embedding(torch.tensor([50]), weight(50, 8)), "ids holds 50, expected 0 to 49"),
        (lambda ops: ops.embedding(torch.tensor([-1]), weight(50, 8)), "ids holds -1, expected 0 to 49"),
        (lambda ops: ops.take_rows(randn(3, 4), torch.tensor([3])), "rows holds 3, expected 0 to 2"),
        (lambda ops: ops.kv_copy(store(), torch.tensor([9]), torch.tensor([0])), "sources holds 9, expected 0 to 8"),
        (lambda ops: ops.kv_move(store(), torch.tensor([0]), torch.tensor([36])), "targets holds 36, expected 0 to 35"),
        (lambda ops: store_at(ops, 36), "slot holds 36, expected 0 to 35"),
    ],
)
def test_an_index_that_would_go_out_of_bounds_is_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(NativeOps(None, 1))


def store() -> KVStore:
    return KVStore(torch.zeros(9, 4, 1, 4), torch.zeros(9, 4, 1, 4))


def store_at(ops: NativeOps, slot: int) -> None:
    x, angles, where = randn(1, 8), randn(1, 2), GroupRows(torch.tensor([slot]), torch.zeros(1, 1), 4)
    ops.qkv_rope_store(x, weight(12, 8), QkvSpec(1, 1, 4), angles, angles, store(), where)


def test_the_set_binds_every_operation_natively() -> None:
    ops: BoundOps = resolve_set(f"native-{ISAS[0]}")
    assert {bound.name for bound in ops.bound.values()} == {f"native {ISAS[0]}"}
    assert all(not isinstance(bound.call, partial) for bound in ops.bound.values())
