"""Inverse frequencies equal transformers' for every kind, from new and old spellings of the configuration."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from vivace.errors import UnsupportedModel
from vivace.layers.rope_scaling import RopeConfig, inverse_frequencies, read_rope, rope_parameters

HEAD_DIM, MAX_LENGTH, TRAINED = 32, 4096, 1024
SHORT = [1.0 + 0.1 * index for index in range(16)]
LONG = [1.5 + 0.7 * index for index in range(16)]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": TRAINED}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": SHORT,
    "long_factor": LONG,
    "original_max_position_embeddings": TRAINED,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": TRAINED,
}
KINDS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 8.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "yarn": YARN,
    "yarn-own-attention": {**YARN, "attention_factor": 0.8},
    "yarn-magnitudes": {**YARN, "mscale": 1.3, "mscale_all_dim": 0.6},
    "yarn-betas": {**YARN, "beta_fast": 20.0, "beta_slow": 2.0, "truncate": False},
    "llama3": LLAMA3,
    "longrope": LONGROPE,
    "longrope-own-factor": {**LONGROPE, "factor": 3.0},
    "longrope-own-attention": {**LONGROPE, "attention_factor": 1.1},
}


def peer(parameters: dict[str, Any], limit: int | None, theta: float) -> tuple[torch.Tensor, float]:
    config = LlamaConfig(
        hidden_size=128,
        num_attention_heads=4,
        head_dim=HEAD_DIM,
        max_position_embeddings=MAX_LENGTH,
        rope_parameters={"rope_theta": theta, **parameters},
    )
    return ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, None, seq_len=limit)


@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
@pytest.mark.parametrize("limit", [None, TRAINED, TRAINED + 1, MAX_LENGTH, 3 * MAX_LENGTH])
@pytest.mark.parametrize("kind", KINDS)
def test_frequencies_equal_the_peers(kind: str, limit: int | None, theta: float) -> None:
    config = read_rope({"rope_theta": theta, **KINDS[kind]}, HEAD_DIM, MAX_LENGTH)
    ours, scale = inverse_frequencies(config, limit or 0)
    theirs, their_scale = peer(KINDS[kind], limit, theta)
    assert torch.equal(ours, theirs)
    assert scale == their_scale


def test_default_frequencies_equal_the_peers() -> None:
    config = LlamaConfig(head_dim=HEAD_DIM, rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    theirs, _ = LlamaRotaryEmbedding.compute_default_rope_parameters(config)
    ours, scale = inverse_frequencies(read_rope({"rope_theta": 5e5}, HEAD_DIM, MAX_LENGTH))
    assert torch.equal(ours, theirs)
    assert scale == 1.0


@pytest.mark.parametrize("kind", ["linear", "llama3", "longrope", "yarn"])
def test_partial_rotary_equals_the_peers(kind: str) -> None:
    parameters = {**KINDS[kind], "partial_rotary_factor": 0.5}
    if kind == "longrope":
        parameters.update(short_factor=SHORT[:8], long_factor=LONG[:8])
    config = read_rope({"rope_theta": 1e4, **parameters}, HEAD_DIM, MAX_LENGTH)
    ours, _ = inverse_frequencies(config)
    theirs, _ = peer(parameters, None, 1e4)
    assert config.dim == HEAD_DIM // 2
    assert torch.equal(ours, theirs)


def test_old_and_new_spellings_are_the_same_table() -> None:
    new = {"rope_parameters": {"rope_theta": 5e5, **LLAMA3}}
    old = {"rope_theta": 5e5, "rope_scaling": LLAMA3}
    older = {"rope_theta": 5e5, "rope_scaling": {"type" if key == "rope_type" else key: LLAMA3[key] for key in LLAMA3}}
    tables = {read_rope(rope_parameters(config), HEAD_DIM, MAX_LENGTH) for config in (new, old, older)}
    assert len(tables) == 1


def test_parameters_nested_by_layer_type_are_told_apart() -> None:
    config = {"rope_parameters": {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}}
    assert rope_parameters(config, "full_attention") == {"rope_theta": 1e6}
    assert rope_parameters(config, "sliding_attention") == {"rope_theta": 1e4}


def test_the_trained_length_may_stand_at_the_top() -> None:
    scaling = {key: value for key, value in LONGROPE.items() if key != "original_max_position_embeddings"}
    scaling["rope_type"] = "su"
    config = {"rope_theta": 1e4, "rope_scaling": scaling, "original_max_position_embeddings": 512}
    table = read_rope(rope_parameters(config), HEAD_DIM, MAX_LENGTH)
    assert (table.rope_type, table.trained_length, table.stretch) == ("longrope", 512, 8.0)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"rope_type": "yarm"}, "did you mean 'yarn'"),
        ({"rope_type": "linear"}, "needs 'factor'"),
        ({"rope_type": "linear", "factor": 2.0, "beta_fats": 3.0}, "did you mean 'beta_fast'"),
        ({**LONGROPE, "long_factor": [1.0]}, "expected 16"),
        ({"mrope_section": [4, 6, 6]}, "'mrope_section' is not known"),
        ({"rope_type": "linear", "factor": "8"}, "'factor' is '8', expected a number"),
        ({**LONGROPE, "long_factor": 3.0}, "expected a list of numbers"),
    ],
)
def test_what_is_not_known_is_named(parameters: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        read_rope(parameters, HEAD_DIM, MAX_LENGTH)
    assert words in str(caught.value)


def test_rotary_parameters_that_are_no_object_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="expected an object"):
        rope_parameters({"rope_scaling": [8.0]})


def test_an_odd_number_of_dimensions_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="even number"):
        RopeConfig(dim=7, max_length=16)
