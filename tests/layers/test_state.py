"""Layouts become page groups and stores: bytes per unit, windows, page 0."""

from __future__ import annotations

import pytest
import torch

from vivace.engine.batch import Keep, PageGroup
from vivace.errors import ConfigError
from vivace.kernels import select
from vivace.kernels.store import STORE_DTYPES
from vivace.layers.state import LayerState, make_stores, page_groups

FULL = LayerState(kv_heads=2, key_dim=8, value_dim=6)
REFERENCE = select.resolve(choice="ref")
SLIDING = LayerState(kv_heads=2, key_dim=8, value_dim=6, window=5)


def test_unit_bytes_are_summed_over_the_layers_of_a_group() -> None:
    groups = page_groups((FULL, SLIDING, FULL, FULL), page_size=16)
    assert groups == (
        PageGroup("full", 3 * 2 * (8 + 6) * 4, 16),
        PageGroup("window", 2 * (8 + 6) * 4, 16, Keep.LAST, 5),
    )


def test_a_group_without_layers_is_left_out() -> None:
    assert [group.name for group in page_groups((FULL,), 16)] == ["full"]
    assert [group.name for group in page_groups((SLIDING,), 16)] == ["window"]


def test_two_windows_in_one_model_are_our_mistake() -> None:
    with pytest.raises(AssertionError, match="one window"):
        page_groups((SLIDING, LayerState(2, 8, 6, window=7)), 16)


def test_stores_have_one_page_more_than_are_usable() -> None:
    full, sliding = make_stores((FULL, SLIDING), {"full": 7, "window": 3}, 16, REFERENCE)
    assert full.keys.shape == (8, 16, 2, 8)
    assert full.values.shape == (8, 16, 2, 6)
    assert sliding.keys.shape == (4, 16, 2, 8)
    assert full.keys.dtype == torch.float32


def test_a_narrower_format_halves_the_bytes() -> None:
    assert page_groups((FULL,), 16, "bf16")[0].unit_bytes * 2 == page_groups((FULL,), 16)[0].unit_bytes
    assert make_stores((FULL,), {"full": 1}, 16, REFERENCE, "bf16")[0].keys.dtype == torch.bfloat16


@pytest.mark.parametrize("store_format", STORE_DTYPES)
def test_the_bytes_of_a_page_are_those_of_its_tensors(store_format: str) -> None:
    (store,) = make_stores((FULL,), {"full": 4}, 16, REFERENCE, store_format)
    parts = (store.keys, store.values, store.key_scales, store.value_scales)
    stored = sum(part[0].nbytes for part in parts if part is not None)
    assert page_groups((FULL,), 16, store_format)[0].unit_bytes * 16 == stored


def test_an_unknown_format_is_named() -> None:
    with pytest.raises(ConfigError, match="did you mean 'bf16'"):
        page_groups((FULL,), 16, "bf61")


@pytest.mark.parametrize("pages", [1 << 40, 1 << 60])
def test_memory_that_the_system_does_not_give_is_a_wrong_setting(pages: int) -> None:
    with pytest.raises(ConfigError, match="the system does not give"):
        make_stores((FULL,), {"full": pages}, 1 << 10, REFERENCE)
