"""Dequantization of every packed GGUF type against the gguf package, bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import gguf
import numpy as np
import pytest
import torch
from gguf import quants

from tests.weights.k_blocks import q4_k, q6_k
from vivace.weights.gguf_types import CHUNK_ELEMENTS, TYPES, GgufType, dequantize

PACKED = [kind for kind in TYPES.values() if kind.coding is not None]
QUANTIZABLE = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4")  # what the gguf package can write


def assert_same_bits(ours: torch.Tensor, theirs: np.ndarray) -> None:
    """Equal as bit patterns; NaN equals NaN whatever its payload, which hardware may change in a conversion."""
    found = ours.numpy().reshape(theirs.shape)
    same = (found.view(np.int32) == theirs.view(np.int32)) | (np.isnan(found) & np.isnan(theirs))
    assert same.all(), f"{(~same).sum()} of {same.size} values differ"


def peer(blocks: np.ndarray, kind: GgufType) -> np.ndarray:
    with np.errstate(all="ignore"):  # random scales hold infinities and NaN
        return quants.dequantize(blocks, gguf.GGMLQuantizationType[kind.name])


@pytest.mark.parametrize("kind", TYPES.values(), ids=lambda kind: kind.name)
def test_table_agrees_with_the_peer_on_codes_and_sizes(kind: GgufType) -> None:
    theirs = gguf.GGMLQuantizationType[kind.name]
    assert (kind.code, (kind.block_size, kind.block_bytes)) == (int(theirs), gguf.GGML_QUANT_SIZES[theirs])


@pytest.mark.parametrize("kind", PACKED, ids=lambda kind: kind.name)
def test_random_blocks_dequantize_to_the_same_bits(kind: GgufType) -> None:
    blocks = np.random.default_rng(kind.code).integers(0, 256, (3000, kind.block_bytes), dtype=np.uint8)
    theirs = peer(blocks, kind)
    assert np.isfinite(theirs).mean() > 0.9  # not blind: nearly all random scales are numbers
    assert_same_bits(dequantize(torch.from_numpy(blocks).reshape(-1), kind), theirs)


@pytest.mark.parametrize("kind", [kind for kind in PACKED if kind.name in QUANTIZABLE], ids=lambda kind: kind.name)
def test_quantized_weights_dequantize_to_the_same_bits(kind: GgufType) -> None:
    weights = np.random.default_rng(kind.code).standard_normal((64, 256)).astype(np.float32)
    packed = quants.quantize(weights, gguf.GGMLQuantizationType[kind.name])
    ours = dequantize(torch.from_numpy(packed.copy()).reshape(-1), kind)
    assert_same_bits(ours, peer(packed, kind))
    assert np.abs(ours.numpy().reshape(weights.shape) - weights).mean() < 0.2  # the codes are in the right order


@pytest.mark.parametrize("kind", PACKED, ids=lambda kind: kind.name)
def test_results_do_not_depend_on_where_chunks_are_cut(kind: GgufType) -> None:
    block_count = CHUNK_ELEMENTS // kind.block_size + 3
    blocks = np.random.default_rng(kind.code).integers(0, 256, (block_count, kind.block_bytes), dtype=np.uint8)
    raw = torch.from_numpy(blocks)
    whole = dequantize(raw.reshape(-1), kind).reshape(block_count, -1)
    tail = dequantize(raw[-5:].reshape(-1), kind).reshape(5, -1)
    assert_same_bits(whole[-5:], tail.numpy())


def test_no_blocks_give_no_values() -> None:
    for kind in PACKED:
        assert dequantize(torch.empty(0, dtype=torch.uint8), kind).shape == (0,)


@pytest.mark.parametrize(("kind", "write"), [("Q4_K", q4_k), ("Q6_K", q6_k)])
def test_k_blocks_that_tests_write_hold_the_weights(kind: str, write: Callable[[torch.Tensor], torch.Tensor]) -> None:
    weights = torch.randn(6, 512, generator=torch.Generator().manual_seed(3)) * torch.logspace(-3, 3, 6).view(6, 1)
    weights[0, :32] = 0
    theirs = quants.dequantize(write(weights).numpy(), gguf.GGMLQuantizationType[kind])
    largest = weights.abs().amax(1, keepdim=True)
    assert (torch.from_numpy(theirs) - weights).abs().div(largest).max() < {"Q4_K": 0.08, "Q6_K": 0.03}[kind]
