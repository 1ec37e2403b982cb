"""A store in panels holds what a plain one holds, and every native operation gives the same bits on both."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.kernels.conftest import ISAS, resolve_set
from tests.kernels.steps import GROUP, assert_equal_stores, cut_step, random_past, stored_as
from vivace.errors import ConfigError
from vivace.kernels.cpu.bind import NativeOps
from vivace.kernels.layout import pack_panels
from vivace.kernels.ops import AttentionSpec, GroupRows, QkvSpec, StoreShape, f32_weight
from vivace.kernels.store import STORE_DTYPES, from_panels, panel_store, plain_store, to_panels

CPU = torch.device("cpu")
PLAIN = AttentionSpec(heads=4, kv_heads=4, head_dim=8, scale=0.35)
SPECS = {
    "plain": PLAIN,
    "grouped": replace(PLAIN, heads=9, kv_heads=3, head_dim=64),
    "many heads a key head": replace(PLAIN, heads=40, kv_heads=1, head_dim=19),
    "window": replace(PLAIN, window=21),
    "window of one": replace(PLAIN, window=1),
    "capped": replace(PLAIN, soft_cap=1.5),
    "slopes and biases": replace(PLAIN, slopes=torch.linspace(-1, 1, 4), biases=torch.linspace(-1, 1, 28).view(4, 7)),
    "both ways": replace(PLAIN, is_causal=False),
    "both ways, window": replace(PLAIN, is_causal=False, window=19),
}
LENGTHS = (123, 1, 340, 48)
# A whole prompt, a first unit, a chunk, a decode at the end of a panel.
SPANS = ((0, 0, 123), (1, 0, 1), (2, 200, 50), (3, 47, 1))


@pytest.fixture(params=ISAS)
def native(request: pytest.FixtureRequest, needs_native: None) -> NativeOps:
    return NativeOps(request.param, 2)


@pytest.mark.parametrize("page_size", [16, 48])
@pytest.mark.parametrize("name", STORE_DTYPES)
def test_what_goes_into_panels_comes_out(name: str, page_size: int) -> None:
    shape = StoreShape(3, page_size, 2, 5, 7)
    plain, made = (make(shape, name, CPU) for make in (plain_store, panel_store))
    plain = stored_as(name, torch.randn(plain.keys.shape), torch.randn(plain.values.shape))
    packed = to_panels(plain)
    assert (packed.keys.shape, packed.values.shape, packed.format) == (made.keys.shape, made.values.shape, made.format)
    assert packed.keys[1, 1, page_size // 16 - 1, 3, 2] == plain.keys[1, page_size - 14, 1, 3]
    assert (packed.key_scales is None) == (made.key_scales is None) == (name != "i8")
    if packed.key_scales is not None and made.key_scales is not None:
        assert packed.key_scales.shape == made.key_scales.shape
    assert_equal_stores(from_panels(packed), plain)


def test_pages_that_panels_do_not_fill_stay_plain() -> None:
    assert panel_store(StoreShape(3, 24, 2, 5, 7), "f32", CPU).format == "f32"
    with pytest.raises(ConfigError, match="did you mean 'bf16'"):
        panel_store(StoreShape(3, 16, 2, 5, 7), "bf61", CPU)


def test_native_operations_ask_for_panels_and_the_reference_for_plain_pages(needs_native: None) -> None:
    shape = StoreShape(2, 16, 1, 4, 4)
    assert resolve_set(f"native-{ISAS[0]}").make_store(shape, "f16").format == "f16_panel16"
    assert resolve_set("ref").make_store(shape, "f16").format == "f16"


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("store_format", STORE_DTYPES)
@pytest.mark.parametrize("page_size", [16, 64])
def test_attention_is_the_same_bits_on_panels(native: NativeOps, name: str, store_format: str, page_size: int) -> None:
    spec = SPECS[name]
    spans = SPANS if spec.is_causal else tuple((s, 0, length) for s, length in enumerate(LENGTHS))
    q, store, rows = cut_step(random_past(LENGTHS, spec, value_dim=24), spans, page_size)
    store = stored_as(store_format, store.keys, store.values)
    sinks = torch.linspace(-1, 2, spec.heads)
    expected = native.attention(q, store, rows, GROUP, spec, sinks)
    assert expected.isfinite().all()
    assert torch.equal(native.attention(q, to_panels(store), rows, GROUP, spec, sinks), expected)


@pytest.mark.parametrize("window", [None, 4, 30])
@pytest.mark.parametrize("context", [0, 7, 13, 32, 95])
def test_a_draft_tree_is_the_same_bits_on_panels(native: NativeOps, window: int | None, context: int) -> None:
    spec, parents = replace(PLAIN, window=window), [-1, 0, 0, 1, 2, 4]
    past = random_past((context + 6,), spec)
    expected = [
        native.attention(q, s, r, GROUP, spec) for q, s, r in [cut_step(past, [(0, context, 6)], 4, parents=parents)]
    ]
    q, store, rows = cut_step(past, [(0, context, 6)], 32, parents=parents)
    assert torch.equal(native.attention(q, to_panels(store), rows, GROUP, spec), expected[0])
    assert torch.equal(native.attention(q, store, rows, GROUP, spec), expected[0])


@pytest.mark.parametrize("store_format", STORE_DTYPES)
def test_stores_are_written_copied_moved_and_turned_alike(native: NativeOps, store_format: str) -> None:
    plain = stored_as(store_format, _randn(9, 32, 3, 10), _randn(9, 32, 3, 6, seed=1))
    packed = to_panels(plain)
    where = GroupRows(torch.tensor([40, 41, 271, 5]), torch.zeros(1, 1), 32)
    weight, cos, sin = pack_panels(f32_weight(_randn(78, 20))), _randn(4, 4, seed=2), _randn(4, 4, seed=3)
    calls = [
        ("kv_copy", torch.tensor([1, 2, 3]), torch.tensor([2, 3, 4])),
        ("kv_move", torch.tensor([50, 60, 70, 4]), torch.tensor([60, 70, 50, 287])),
        ("kv_rotate", torch.tensor([3, 140, 30, 31]), cos, sin, "half"),
    ]
    for store in (plain, packed):
        native.qkv_rope_store(_randn(4, 20), weight, QkvSpec(3, 3, 10), cos, sin, store, where)
        for name, *arguments in calls:
            getattr(native, name)(store, *arguments)
    assert_equal_stores(from_panels(packed), plain)


def _randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
