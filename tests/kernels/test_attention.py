"""`attention` and `attention_packed` of every set: right for every kind of row, and the same bits in any step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kernels.steps import (
    GROUP,
    Past,
    cut_step,
    expected_attention,
    packed_step,
    random_past,
    stored_as,
)
from vivace.errors import ConfigError
from vivace.kernels.ops import AttentionSpec, KVStore
from vivace.kernels.select import BoundOps
from vivace.kernels.store import STORE_DTYPES

# Scores sum head_dim products and outputs average the values: a few roundings of float32 on numbers of size 1 to 10.
TOLERANCE = 2e-6

PLAIN = AttentionSpec(heads=4, kv_heads=4, head_dim=8, scale=0.35)
SLOPES = torch.tensor([-0.7, 0.02, 1.1, 0.3, -0.05, 0.6])
BIASES = torch.randn(6, 2 * 3 + 1, generator=torch.Generator().manual_seed(3))  # farther than 3 units: the ends
SPECS = {
    "plain": PLAIN,
    "grouped": replace(PLAIN, heads=6, kv_heads=2),
    "one key head": replace(PLAIN, kv_heads=1),
    "odd dim": replace(PLAIN, head_dim=19),
    "window": replace(PLAIN, window=5),
    "window of one": replace(PLAIN, window=1),
    "capped": replace(PLAIN, soft_cap=1.5, scale=1.0),
    "slopes": replace(PLAIN, slopes=SLOPES[:4]),
    "biases": replace(PLAIN, biases=BIASES[:4]),
    "all at once": AttentionSpec(6, 3, 20, scale=0.3, window=7, soft_cap=2.0, slopes=SLOPES, biases=BIASES),
}
LENGTHS = (23, 1, 40, 9)
# (sequence, start, count): a whole prompt, a first unit, a chunk, a decode.
SPANS = ((0, 0, 23), (1, 0, 1), (2, 11, 20), (3, 8, 1))


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("has_sinks", [False, True])
def test_each_row_attends_to_what_it_sees(ops: BoundOps, name: str, has_sinks: bool) -> None:
    spec = SPECS[name]
    past = random_past(LENGTHS, spec, value_dim=12)
    sinks = torch.linspace(-1, 2, spec.heads) if has_sinks else None
    q, store, rows = cut_step(past, SPANS, page_size=4)
    y = ops.attention(q, store, rows, GROUP, spec, sinks)
    torch.testing.assert_close(y.double(), _expected(past, SPANS, spec, sinks), atol=TOLERANCE, rtol=TOLERANCE)


def test_pages_behind_the_window_are_not_read(ops: BoundOps) -> None:
    spec = replace(PLAIN, window=6)
    past = random_past((40,), spec)
    q, store, rows = cut_step(past, [(0, 30, 3)], page_size=4)
    expected = ops.attention(q, store, rows, GROUP, spec)
    rows.groups[GROUP].table[0, : (30 - 5) // 4] = 0  # given back: the null page, which holds NaN here
    assert torch.equal(ops.attention(q, store, rows, GROUP, spec), expected)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("window", [None, 4])
def test_rows_of_a_draft_tree_see_their_own_branch(ops: BoundOps, window: int | None, has_bias: bool) -> None:
    spec = replace(PLAIN, window=window)
    spec = replace(spec, slopes=SLOPES[:4], biases=BIASES[:4]) if has_bias else spec
    past = random_past((13,), spec)
    #       0 - 1 - 3
    #         \ 2 - 4 - 5
    parents = [-1, 0, 0, 1, 2, 4]
    branches = [[0], [0, 1], [0, 2], [0, 1, 3], [0, 2, 4], [0, 2, 4, 5]]
    q, store, rows = cut_step(past, [(0, 7, 6)], page_size=4, parents=parents)
    y = ops.attention(q, store, rows, GROUP, spec)
    for row, branch in enumerate(branches):
        seen = [*range(7), *(7 + step for step in branch)]
        seen = seen if window is None else seen[-window:]
        expected = expected_attention(q[row], past.keys[0][seen], past.values[0][seen], spec)
        torch.testing.assert_close(y[row].double(), expected, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("page_size", [4, 16])
@pytest.mark.parametrize("window", [None, 6])
def test_a_draft_tree_changes_no_other_row_of_its_step(
    invariant_ops: BoundOps, window: int | None, page_size: int
) -> None:
    """A long prompt, a chunk that ends with a tree, a decode: chains have the bits that they have without the tree."""
    ops, spec, first = invariant_ops, replace(PLAIN, window=window), 70
    past, spans = random_past((75, 40, 20), spec), [(0, 3, first), (1, 17, 21), (2, 19, 1)]
    #  0 - .. - 11 - 12 - 13 - 14 - 16
    #             \ 19 - 20  \ 15 - 17 - 18
    tree = [*range(-1, 14), 13, 14, 15, 17, 11, 19]
    parents = [*range(-1, first - 1), *(first + parent if parent >= 0 else -1 for parent in tree), -1]
    q, store, rows = cut_step(past, spans, page_size=page_size, parents=parents)
    y = ops.attention(q, store, rows, GROUP, spec)
    chain = ops.attention(*cut_step(past, spans, page_size=page_size), GROUP, spec)
    assert torch.equal(y[: first + 15], chain[: first + 15])
    assert torch.equal(y[-1], chain[-1])
    for row in range(15, len(tree)):
        branch, ancestor = [row], tree[row]
        while ancestor >= 0:
            branch, ancestor = [ancestor, *branch], tree[ancestor]
        seen = [*range(17), *(17 + step for step in branch)][-(window or 40) :]
        expected = expected_attention(q[first + row], past.keys[1][seen], past.values[1][seen], spec)
        torch.testing.assert_close(y[first + row].double(), expected, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("has_bias", [False, True])
def test_without_causality_a_row_sees_its_whole_sequence(ops: BoundOps, has_bias: bool) -> None:
    spec = replace(PLAIN, is_causal=False)
    spec = replace(spec, slopes=SLOPES[:4], biases=BIASES[:4]) if has_bias else spec
    past = random_past((9, 5), spec)
    q, store, rows = cut_step(past, [(0, 0, 9), (1, 0, 5)], page_size=4)
    y = ops.attention(q, store, rows, GROUP, spec)
    expected = [
        expected_attention(q, past.keys[s], past.values[s], spec, own=own)
        for s in (0, 1)
        for own, q in enumerate(past.queries[s])
    ]
    torch.testing.assert_close(y.double(), torch.stack(expected), atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("window", [None, 3])
def test_packed_attention_stays_within_sequence_and_window(
    ops: BoundOps, is_causal: bool, window: int | None, has_bias: bool
) -> None:
    spec = AttentionSpec(heads=6, kv_heads=3, head_dim=8, scale=0.4, window=window, is_causal=is_causal)
    spec = replace(spec, slopes=SLOPES * 0.1, biases=BIASES, soft_cap=2.0) if has_bias else spec
    lengths = (7, 0, 1, 12, 70)
    past = random_past(lengths, spec)
    y = ops.attention_packed(*packed_step(past), spec)
    expected = []
    for sequence, length in enumerate(lengths):
        for row in range(length):
            reach = length if window is None else window
            ahead = 0 if is_causal else reach - 1
            seen = slice(max(0, row - reach + 1), row + ahead + 1)
            keys, values = past.keys[sequence][seen], past.values[sequence][seen]
            own = row - seen.start
            expected.append(expected_attention(past.queries[sequence][row], keys, values, spec, own=own))
    torch.testing.assert_close(y.double(), torch.stack(expected), atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("name", SPECS)
def test_packed_attention_equals_attention_over_a_store(ops: BoundOps, name: str) -> None:
    spec = replace(SPECS[name], is_causal=False)
    past = random_past(LENGTHS, spec)
    q, store, rows = cut_step(past, [(s, 0, length) for s, length in enumerate(LENGTHS)], page_size=16)
    expected = ops.attention(q, store, rows, GROUP, spec)
    y = ops.attention_packed(*packed_step(past), spec)
    torch.testing.assert_close(y, expected, atol=TOLERANCE, rtol=TOLERANCE)


LONG = {
    "decode": ((0, 898, 1),),
    "chunks": ((0, 500, 40), (1, 250, 20), (0, 255, 1), (1, 0, 3)),
    "among short ones": ((0, 880, 18), (1, 3, 1), (1, 269, 1)),
}


@pytest.mark.parametrize("spans", LONG)
@pytest.mark.parametrize("window", [None, 300])
def test_contexts_of_many_stretches(ops: BoundOps, spans: str, window: int | None) -> None:
    spec = AttentionSpec(6, 3, 12, scale=0.4, window=window, slopes=SLOPES * 0.01, biases=BIASES)
    past, sinks = random_past((899, 270), spec, value_dim=20), torch.linspace(-1, 9, 6)
    q, store, rows = cut_step(past, LONG[spans], page_size=16)
    y = ops.attention(q, store, rows, GROUP, spec, sinks)
    torch.testing.assert_close(y.double(), _expected(past, LONG[spans], spec, sinks), atol=4e-6, rtol=4e-6)


def test_without_causality_rows_see_the_stretches_after_them(ops: BoundOps) -> None:
    spec = AttentionSpec(2, 1, 8, scale=0.4, window=290, is_causal=False, slopes=SLOPES[:2] * 0.01)
    past = random_past((700,), spec)
    q, store, rows = cut_step(past, [(0, 0, 700)], page_size=16)
    y = ops.attention(q, store, rows, GROUP, spec)
    for row in (0, 200, 300, 511, 699):
        seen = slice(max(0, row - 289), row + 290)
        args = past.queries[0][row], past.keys[0][seen], past.values[0][seen], spec
        expected = expected_attention(*args, own=row - seen.start)
        torch.testing.assert_close(y[row].double(), expected, atol=4e-6, rtol=4e-6)


def test_biases_of_minus_infinity_hide_units(ops: BoundOps) -> None:
    """Also where they hide all that stands in a stretch."""
    biases = torch.zeros(4, 2 * 5 + 1)
    biases[:, 0] = -torch.inf  # five units before a row, and all before those
    past = random_past((600,), PLAIN)
    q, store, rows = cut_step(past, [(0, 590, 10)], page_size=16)
    found = ops.attention(q, store, rows, GROUP, replace(PLAIN, biases=biases))
    expected = ops.attention(q, store, rows, GROUP, replace(PLAIN, window=5))
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=TOLERANCE)


def test_a_step_without_rows_gives_none(ops: BoundOps) -> None:
    past = random_past((5,), PLAIN, value_dim=3)
    q, store, rows = cut_step(past, [(0, 5, 0)], page_size=4)
    assert ops.attention(q, store, rows, GROUP, PLAIN).shape == (0, 12)
    assert ops.attention_packed(torch.zeros(0, 96), replace(rows, starts=(0,)), PLAIN).shape == (0, 32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"heads": 6, "kv_heads": 4}, "6 heads cannot share 4 key heads"),
        ({"heads": 0}, "0 heads cannot share 4 key heads"),
        ({"slopes": SLOPES}, r"slopes have the shape \(6,\), expected \(4,\)"),
        ({"biases": BIASES}, r"biases have the shape \(6, 7\), expected \(4, an odd number\)"),
        ({"biases": BIASES[:4, 1:]}, r"biases have the shape \(4, 6\), expected \(4, an odd number\)"),
    ],
)
def test_what_does_not_fit_the_heads_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(PLAIN, **arguments)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stores_are_widened(ops: BoundOps, dtype: torch.dtype) -> None:
    past = random_past(LENGTHS, PLAIN)
    q, store, rows = cut_step(past, SPANS, page_size=4)
    half = KVStore(store.keys.to(dtype), store.values.to(dtype), {torch.bfloat16: "bf16", torch.float16: "f16"}[dtype])
    wide = KVStore(half.keys.float(), half.values.float())
    assert torch.equal(ops.attention(q, half, rows, GROUP, PLAIN), ops.attention(q, wide, rows, GROUP, PLAIN))


@pytest.mark.parametrize("name", SPECS)
def test_stores_of_bytes_are_read_as_codes_times_their_scale(ops: BoundOps, name: str) -> None:
    spec = SPECS[name]
    past = random_past(LENGTHS, spec, value_dim=12)
    q, store, rows = cut_step(past, SPANS, page_size=4)
    codes = stored_as("i8", store.keys, store.values)
    assert codes.key_scales is not None and codes.value_scales is not None
    wide = KVStore(codes.keys * codes.key_scales[..., None], codes.values * codes.value_scales[..., None])
    expected = ops.attention(q, wide, rows, GROUP, spec)
    assert expected.isfinite().all()
    torch.testing.assert_close(ops.attention(q, codes, rows, GROUP, spec), expected, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("store_format", STORE_DTYPES)
@pytest.mark.parametrize("name", SPECS)
def test_a_row_is_the_same_bits_in_any_step(invariant_ops: BoundOps, name: str, store_format: str) -> None:
    """Cut into other chunks, on pages of another size and order, with other neighbours: the row does not change."""
    spec = SPECS[name]
    past = random_past(LENGTHS, spec)
    run = partial(_run, invariant_ops, past, spec=spec, store_format=store_format)
    whole = {s: run([(s, 0, LENGTHS[s])], page_size=16)[0] for s in range(4)}
    for seed, page_size, spans in (
        (1, 1, [(0, 0, 10), (2, 0, 17), (1, 0, 1)]),
        (2, 5, [(3, 8, 1), (2, 17, 23), (0, 10, 13)]),
        (3, 64, [(2, 39, 1), (0, 22, 1), (3, 3, 6)]),
    ):
        for (s, start, count), part in zip(spans, run(spans, page_size=page_size, seed=seed), strict=True):
            assert torch.equal(part, whole[s][start : start + count])


@pytest.mark.parametrize("window", [None, 300])
def test_a_row_of_a_long_context_is_the_same_bits_in_any_step(invariant_ops: BoundOps, window: int | None) -> None:
    spec = AttentionSpec(4, 2, 8, scale=0.4, window=window, slopes=SLOPES[:4] * 0.01)
    past = random_past((899, 899, 30), spec)
    run = partial(_run, invariant_ops, past, spec=spec, store_format="i8", page_size=16)
    alone = torch.cat([run([(0, unit, 1)])[0] for unit in range(870, 899)])
    chunks = run([(0, 870, 11)])[0], run([(2, 0, 30), (0, 881, 18), (1, 3, 200)], seed=2)[1]
    assert torch.equal(torch.cat(chunks), alone)


@pytest.mark.parametrize("window", [None, 3])
def test_a_packed_row_is_the_same_bits_with_any_neighbours(invariant_ops: BoundOps, window: int | None) -> None:
    spec = AttentionSpec(heads=6, kv_heads=3, head_dim=12, scale=0.4, window=window, is_causal=False)
    past = random_past((7, 5, 12, 40), spec)
    qkv, rows = packed_step(past)
    together = invariant_ops.attention_packed(qkv, rows, spec)
    for first, last in pairwise(rows.starts):
        alone = replace(rows, starts=(0, last - first), context=(0,))
        assert torch.equal(invariant_ops.attention_packed(qkv[first:last], alone, spec), together[first:last])


def _run(
    ops: BoundOps,
    past: Past,
    spans: Sequence[tuple[int, int, int]],
    *,
    spec: AttentionSpec,
    store_format: str,
    page_size: int,
    seed: int = 0,
) -> tuple[Tensor, ...]:
    q, store, rows = cut_step(past, spans, page_size, seed=seed)
    store = stored_as(store_format, store.keys, store.values)
    return ops.attention(q, store, rows, GROUP, spec).split([count for _, _, count in spans])


def _expected(past: Past, spans: Sequence[tuple[int, int, int]], spec: AttentionSpec, sinks: Tensor | None) -> Tensor:
    results = []
    for s, start, count in spans:
        for unit in range(start, start + count):
            seen = slice(0 if spec.window is None else max(0, unit + 1 - spec.window), unit + 1)
            results.append(
                expected_attention(past.queries[s][unit], past.keys[s][seen], past.values[s][seen], spec, sinks)
            )
    return torch.stack(results)
