"""Rotary tables of a model: variants per job length, and cos and sin per row."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from vivace.kernels import select
from vivace.layers.rope import Ropes
from vivace.layers.rope_scaling import RopeConfig

LONG = RopeConfig(
    dim=8,
    max_length=4096,
    rope_type="longrope",
    original_max_position_embeddings=64,
    short_factor=(1.0, 1.1, 1.2, 1.3),
    long_factor=(2.0, 3.0, 4.0, 5.0),
)
DYNAMIC = RopeConfig(dim=8, max_length=64, rope_type="dynamic", factor=2.0)
PLAIN = RopeConfig(dim=8, max_length=64)
REF = select.resolve(choice="ref")


def rows(*values: int) -> torch.Tensor:
    return torch.tensor(values).view(-1, 1)


def variants(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_a_table_that_does_not_depend_on_length_has_one_variant() -> None:
    ropes = Ropes({"text": PLAIN})
    assert {ropes.variant(limit) for limit in (1, 64, 100_000)} == {0}


def test_longrope_has_a_short_and_a_long_variant() -> None:
    ropes = Ropes({"text": LONG})
    assert [ropes.variant(limit) for limit in (1, 64, 65, 4096)] == [0, 0, 1, 1]
    assert not torch.equal(ropes.frequencies("text", 0)[0], ropes.frequencies("text", 1)[0])


def test_dynamic_has_one_variant_per_length_beyond_the_trained_one() -> None:
    ropes = Ropes({"text": DYNAMIC})
    assert [ropes.variant(limit) for limit in (5, 64, 100, 200, 100)] == [0, 0, 1, 2, 1]


def test_one_number_stands_for_all_tables_of_a_model() -> None:
    ropes = Ropes({"global": DYNAMIC, "local": LONG})
    first, second = ropes.variant(65), ropes.variant(66)
    assert (first, second) == (1, 2)
    assert torch.equal(ropes.frequencies("local", 1)[0], ropes.frequencies("local", 2)[0])
    assert not torch.equal(ropes.frequencies("global", 1)[0], ropes.frequencies("global", 2)[0])


def test_rows_of_different_variants_take_their_own_frequencies() -> None:
    ropes = Ropes({"text": DYNAMIC})
    long = ropes.variant(300)
    cos, sin = ropes.angles(rows(7, 7), variants(0, long), REF)["text"]
    for row, variant in enumerate((0, long)):
        expected = 7.0 * ropes.frequencies("text", variant)[0]
        assert torch.equal(cos[row], expected.cos())
        assert torch.equal(sin[row], expected.sin())


def test_angles_equal_the_peers_bit_for_bit() -> None:
    parameters = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
    config = LlamaConfig(head_dim=64, max_position_embeddings=256, rope_parameters=dict(parameters))
    position = torch.arange(0, 5000, 37)
    theirs, _ = LlamaRotaryEmbedding(config)(torch.zeros(1), position[None])
    table = RopeConfig(64, 256, rope_type="yarn", factor=4.0, original_max_position_embeddings=64)
    ours, _ = Ropes({"text": table}).angles(position.view(-1, 1), torch.zeros(len(position), dtype=torch.int32), REF)[
        "text"
    ]
    assert torch.equal(ours, theirs[0, :, :32])


@pytest.mark.parametrize("dim", [6, 10, 64, 128])
def test_angles_of_a_row_do_not_depend_on_other_rows(dim: int) -> None:
    ropes = Ropes({"text": RopeConfig(dim, 4096)})
    position = torch.randint(0, 100_000, (67, 1), generator=torch.Generator().manual_seed(1))
    cos, sin = ropes.angles(position, torch.zeros(67, dtype=torch.int32), REF)["text"]
    for row in range(67):
        alone = ropes.angles(position[row : row + 1], torch.zeros(1, dtype=torch.int32), REF)["text"]
        assert torch.equal(alone[0][0], cos[row])
        assert torch.equal(alone[1][0], sin[row])


def test_factors_divide_the_frequencies() -> None:
    factors = torch.tensor([1.0, 2.0, 4.0, 8.0])
    plain, divided = Ropes({"text": PLAIN}), Ropes({"text": PLAIN}, factors)
    assert torch.equal(divided.frequencies("text")[0], plain.frequencies("text")[0] / factors)
