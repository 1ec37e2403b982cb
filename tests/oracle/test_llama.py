"""Llama and Mistral against transformers, with every option and rotary scaling, and each of them switched off."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from tests.oracle.compare import LIMIT, OTHER, PROMPT, SAME, STEPS, Case, Made, Maker, error, our_scores, switches
from tests.oracle.peers import peer_scores
from vivace.kernels.select import BoundOps
from vivace.layers.rope_scaling import RopeConfig

pytestmark = pytest.mark.oracle

BASE = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 0.05,  # large enough to be seen
}
TRAINED = 16  # the original context of stretched models: shorter than the prompt
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.3, 1.7, 2.5],
    "long_factor": [1.5, 2.5, 4.0, 9.0],
    "original_max_position_embeddings": TRAINED,
}


def rope(**parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 100.0, **parameters}}


def plain_rope(config: Any) -> Any:
    return replace(config, rope=RopeConfig(config.rope.dim, config.context_length, config.rope.rope_theta))


def with_rope(**changes: Any) -> Any:
    return lambda config: replace(config, rope=replace(config.rope, **changes))


STRETCHED = {
    "linear": rope(rope_type="linear", factor=4.0),
    "yarn": rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=TRAINED, beta_fast=2.0, beta_slow=0.5),
    "llama3": rope(
        rope_type="llama3",
        factor=8.0,
        low_freq_factor=0.5,
        high_freq_factor=2.0,
        original_max_position_embeddings=TRAINED,
    ),
    "dynamic": {**rope(rope_type="dynamic", factor=3.0), "max_position_embeddings": TRAINED},
    "longrope": rope(**LONG),
}
CASES = [
    Case(
        "grouped-heads",
        BASE,
        off={
            "eps": lambda config: replace(config, rms_norm_eps=1e-6),
            "rope base": with_rope(rope_theta=500.0),
            "activation": lambda config: replace(config, activation="gelu"),
        },
    ),
    Case("odd-heads", {**BASE, "num_attention_heads": 3, "num_key_value_heads": 1}),
    Case("one-head-each", {**BASE, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 10}),
    Case(
        "biases",
        {**BASE, "attention_bias": True, "mlp_bias": True},
        off={
            "attention bias": lambda config: replace(config, attention_bias=False),
            "mlp bias": lambda config: replace(config, mlp_bias=False),
        },
    ),
    Case("tied", {**BASE, "tie_word_embeddings": True}),
    *(Case(name, {**BASE, **options}, off={"scaling": plain_rope}) for name, options in STRETCHED.items()),
    Case(
        "yarn-magnitudes",
        {
            **BASE,
            **rope(
                rope_type="yarn",
                factor=4.0,
                original_max_position_embeddings=TRAINED,
                beta_fast=3.0,
                beta_slow=0.3,
                mscale=2.0,
                mscale_all_dim=0.7,
                truncate=False,
            ),
        },
        off={"magnitudes": with_rope(mscale=None), "no truncation": with_rope(truncate=True)},
    ),
    Case(
        "longrope-short",
        {**BASE, **rope(**{**LONG, "original_max_position_embeddings": 128}), "max_position_embeddings": 256},
        off={"scaling": plain_rope},
    ),
]
MISTRAL = Case("mistral", {**BASE, "sliding_window": 9}, off={"window": lambda config: replace(config, window=None)})


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    return Maker(tmp_path_factory.mktemp("llama"), LlamaConfig, LlamaForCausalLM)


@pytest.fixture(scope="module")
def mistral(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Maker(tmp_path_factory.mktemp("mistral"), MistralConfig, MistralForCausalLM)(MISTRAL)


def pin_length(made: Made) -> None:
    """Let the peer use the frequencies of the longest length from the first token on, as ours does by contract."""
    if made.case.name == "dynamic":
        peer_scores(made.peer, [0] * LIMIT)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_scores_and_greedy_tokens_equal_the_peers(case: Case, make: Maker, ops: BoundOps) -> None:
    made = make(case)
    pin_length(made)
    scores, driver, number = our_scores(made.load(ops), ops, made.prompt)
    assert error(scores, made.scores) < SAME
    assert driver.greedy(number, scores[-1], STEPS) == made.greedy


@pytest.mark.parametrize(("case", "switch"), switches(CASES))
def test_switching_a_feature_off_is_seen(case: Case, switch: str, make: Maker, ops: BoundOps) -> None:
    made = make(case)
    pin_length(made)
    scores, _, _ = our_scores(made.load_without(switch, ops), ops, made.prompt)
    assert error(scores, made.scores) > OTHER


def test_mistral_window_equals_the_peers(mistral: Made, ops: BoundOps) -> None:
    scores, driver, number = our_scores(mistral.load(ops), ops, mistral.prompt)
    assert error(scores, mistral.scores) < SAME
    assert driver.greedy(number, scores[-1], STEPS) == mistral.greedy
    assert driver.pages_given_back > PROMPT // 8, "the window left no pages behind"


def test_mistral_without_its_window_is_seen(mistral: Made, ops: BoundOps) -> None:
    scores, _, _ = our_scores(mistral.load_without("window", ops), ops, mistral.prompt)
    assert error(scores, mistral.scores) > OTHER
