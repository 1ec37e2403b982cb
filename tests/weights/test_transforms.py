"""Transforms against what the converters of other formats do."""

from __future__ import annotations

import pytest
import torch

from vivace.errors import WeightError
from vivace.weights.transforms import offset_one, transpose, unpermute_rope


def gguf_permute(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Half-split rows to interleaved pairs, as a converter to GGUF writes a Llama: row j of half k goes to 2j + k."""
    head_dim = weight.shape[0] // heads
    rows = [h * head_dim + k * head_dim // 2 + j for h in range(heads) for j in range(head_dim // 2) for k in (0, 1)]
    return weight[rows]


@pytest.mark.parametrize("shape", [(24, 5), (24,)])
@pytest.mark.parametrize("heads", [1, 2, 3, 6])
def test_unpermute_rope_undoes_the_gguf_permutation(shape: tuple[int, ...], heads: int) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    permuted = gguf_permute(weight, heads)
    assert heads == 12 or not torch.equal(permuted, weight)
    assert torch.equal(unpermute_rope(permuted, heads), weight)


def test_rotation_of_pairs_equals_rotation_of_halves() -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(5, generator=generator), torch.randn(8, 5, generator=generator)
    angles = torch.tensor([0.3, 0.7, 1.1, 2.9])
    cos, sin = angles.cos(), angles.sin()
    even, odd = (gguf_permute(weight, 1) @ x).reshape(4, 2).T  # interleaved pairs (2j, 2j + 1)
    pairs = torch.stack([even * cos - odd * sin, even * sin + odd * cos])
    first, second = (unpermute_rope(gguf_permute(weight, 1), 1) @ x).reshape(2, 4)  # pairs (j, j + 4)
    halves = torch.stack([first * cos - second * sin, first * sin + second * cos])
    torch.testing.assert_close(halves, pairs)


@pytest.mark.parametrize("heads", [0, 5, 24])
def test_unpermute_rope_refuses_heads_that_do_not_fit(heads: int) -> None:
    with pytest.raises(WeightError, match=f"24 rows cannot be split into rotary pairs of {heads} heads"):
        unpermute_rope(torch.zeros(24, 2), heads)


def test_offset_one_rounds_once_in_the_tensors_type() -> None:
    weight = torch.tensor([1e-9, -1.0, 0.3])
    assert torch.equal(offset_one(weight, 0), torch.ones(3) + weight)


def test_transpose_gives_contiguous_rows() -> None:
    weight = torch.arange(6.0).reshape(2, 3)
    turned = transpose(weight, 0)
    assert turned.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert turned.is_contiguous()
