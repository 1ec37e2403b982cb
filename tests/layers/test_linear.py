"""Linear maps and embeddings: what they take, how they fuse, and when a head shares the embedding's table."""

from __future__ import annotations

import pytest
import torch

from tests.layers.fakes import FakeWeights, context, loader
from vivace.errors import UnsupportedModel, WeightError
from vivace.kernels.ops import AttentionSpec
from vivace.layers.attention import load_qkv
from vivace.layers.embed import Embedding, load_embedding_and_head
from vivace.layers.linear import Linear
from vivace.layers.mlp import GatedMlp, activation_named


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_a_fused_projection_equals_its_parts_and_names_them() -> None:
    weights = FakeWeights(
        q__weight=drawn(8, 5, seed=1),
        k__weight=drawn(4, 5, seed=2),
        v__weight=drawn(4, 5, seed=3),
        q__bias=drawn(8, seed=4),
        k__bias=drawn(4, seed=5),
        v__bias=drawn(4, seed=6),
    )
    fused = load_qkv(loader(weights), {part: part for part in "qkv"}, 5, AttentionSpec(4, 2, 2, 1.0), has_bias=True)
    assert fused.weight.slices == {"q": (0, 8), "k": (8, 12), "v": (12, 16)}
    assert fused.weight.split == "columns"
    x = drawn(3, 5, seed=7)
    y = fused(x, context())
    for part, (first, last) in fused.weight.slices.items():
        alone = x @ weights.tensors[f"{part}.weight"].T + weights.tensors[f"{part}.bias"]
        assert torch.allclose(y[:, first:last], alone, atol=1e-6)  # one matrix product against another


def test_a_bias_is_taken_only_where_there_should_be_one() -> None:
    weights = FakeWeights(one__weight=drawn(4, 5), one__bias=drawn(4))
    assert Linear.load(loader(weights), "one", 4, 5, split="rows").weight.bias is None
    assert weights.taken == ["one.weight"]
    with pytest.raises(WeightError):
        Linear.load(loader(FakeWeights(one__weight=drawn(4, 5))), "one", 4, 5, split="rows", has_bias=True)


def test_a_gated_mlp_adds_the_residual_only_if_there_is_one() -> None:
    weights = FakeWeights(
        m__gate_proj__weight=drawn(6, 4, seed=1),
        m__up_proj__weight=drawn(6, 4, seed=2),
        m__down_proj__weight=drawn(4, 6),
    )
    mlp = GatedMlp.load(loader(weights), "m", 4, 6, kind="silu")
    x, residual = drawn(3, 4, seed=3), drawn(3, 4, seed=4)
    assert torch.allclose(mlp(x, context(), residual), residual + mlp(x, context()), atol=1e-6)


def test_an_embedding_scales_its_rows() -> None:
    table = drawn(7, 3)
    embedding = Embedding.load(loader(FakeWeights(e__weight=table)), "e", 7, 3, split="columns", scale=2.5)
    ids = torch.tensor([6, 0, 6])
    assert torch.equal(embedding(ids, context()), table[ids] * 2.5)


def test_a_tied_head_is_the_embeddings_table() -> None:
    weights = FakeWeights(e__weight=drawn(7, 3))
    embedding, head = load_embedding_and_head(loader(weights), ("e", "head"), 7, 3, is_tied=True)
    assert head.weight is embedding.weight


def test_an_equal_copy_of_a_tied_head_is_not_kept_twice() -> None:
    weights = FakeWeights(e__weight=drawn(7, 3), head__weight=drawn(7, 3))
    embedding, head = load_embedding_and_head(loader(weights), ("e", "head"), 7, 3, is_tied=True)
    assert head.weight is embedding.weight
    assert weights.taken == ["e.weight", "head.weight"]


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_head_that_differs_is_used(is_tied: bool) -> None:
    weights = FakeWeights(e__weight=drawn(7, 3), head__weight=drawn(7, 3, seed=9))
    _, head = load_embedding_and_head(loader(weights), ("e", "head"), 7, 3, is_tied=is_tied)
    assert torch.equal(head.weight.data, weights.tensors["head.weight"])


def test_an_unknown_activation_is_named() -> None:
    with pytest.raises(UnsupportedModel, match="did you mean 'gelu_new'"):
        activation_named("gelu_nwe")
