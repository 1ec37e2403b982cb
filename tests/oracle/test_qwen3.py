"""Qwen3 against transformers: norms of heads, a head width of its own, sliding layers, and each switched off."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from transformers import Qwen3Config, Qwen3ForCausalLM

from tests.oracle.compare import OTHER, PROMPT, SAME, STEPS, Case, Maker, error, our_scores, switches
from vivace.kernels.select import BoundOps
from vivace.layers.rope_scaling import RopeConfig

pytestmark = pytest.mark.oracle

BASE = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 5,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "rms_norm_eps": 0.05,  # large enough to be seen
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
}
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16}


def without_norm(part: str) -> Any:
    """Our model with no norm on its query or key heads."""

    def cut(model: Any) -> Any:
        def block(old: Any) -> Any:
            spec = replace(old.attention.qkv_spec, **{part: None})
            return replace(old, attention=replace(old.attention, qkv_spec=spec))

        return replace(model, blocks=tuple(block(old) for old in model.blocks))

    return cut


def plain_rope(config: Any) -> Any:
    return replace(config, rope=RopeConfig(config.rope.dim, config.context_length, config.rope.rope_theta))


CASES = [
    Case(
        "dense",
        {**BASE, "tie_word_embeddings": True},
        off={"eps": lambda config: replace(config, rms_norm_eps=1e-6)},
        cut={"query norm": without_norm("q_norm"), "key norm": without_norm("k_norm")},
    ),
    Case(
        "biases",
        {**BASE, "num_attention_heads": 4, "num_key_value_heads": 2, "attention_bias": True},
        off={"bias": lambda config: replace(config, attention_bias=False)},
    ),
    Case("yarn", {**BASE, "rope_parameters": YARN}, off={"scaling": plain_rope}),
    Case(
        "sliding-layers",
        {**BASE, "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
        off={
            "windows": lambda config: replace(config, windows=(None,) * 3),
            "which layers": lambda config: replace(config, windows=config.windows[::-1]),
        },
    ),
]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    return Maker(tmp_path_factory.mktemp("qwen3"), Qwen3Config, Qwen3ForCausalLM)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_scores_and_greedy_tokens_equal_the_peers(case: Case, make: Maker, ops: BoundOps) -> None:
    made = make(case)
    scores, driver, number = our_scores(made.load(ops), ops, made.prompt)
    assert error(scores, made.scores) < SAME
    assert driver.greedy(number, scores[-1], STEPS) == made.greedy
    if case.name == "sliding-layers":
        assert [group.name for group in driver.groups] == ["full", "window"]
        assert driver.pages_given_back > PROMPT // 8, "the window left no pages behind"


@pytest.mark.parametrize(("case", "switch"), switches(CASES))
def test_switching_a_feature_off_is_seen(case: Case, switch: str, make: Maker, ops: BoundOps) -> None:
    made = make(case)
    scores, _, _ = our_scores(made.load_without(switch, ops), ops, made.prompt)
    assert error(scores, made.scores) > OTHER
