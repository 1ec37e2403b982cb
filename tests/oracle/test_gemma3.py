"""Gemma 3 against transformers: two kinds of layers with their own rotary tables, and each feature switched off."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from tests.oracle.compare import LIMIT, OTHER, PAGE, PROMPT, SAME, STEPS, Case, Maker, error, our_scores, switches
from tests.oracle.driver import Driver
from vivace.kernels.select import BoundOps, resolve
from vivace.layers.rope_scaling import RopeConfig
from vivace.layers.state import FULL, WINDOW

pytestmark = pytest.mark.oracle

SLIDING, GLOBAL = "sliding_attention", "full_attention"
BASE = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 5,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "rms_norm_eps": 0.05,  # large enough to be seen
    "sliding_window": 9,
    "layer_types": [SLIDING, GLOBAL, SLIDING, SLIDING, GLOBAL],
    "query_pre_attn_scalar": 5,  # not the width of a head
    "rope_parameters": {
        SLIDING: {"rope_type": "default", "rope_theta": 30.0},
        GLOBAL: {"rope_type": "default", "rope_theta": 500.0},
    },
}
STRETCHED = {
    SLIDING: {"rope_type": "default", "rope_theta": 30.0},
    GLOBAL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 500.0},
}


def without_norms(*names: str) -> Any:
    """Our model with the named norms of each block left out."""
    return lambda model: replace(
        model, blocks=tuple(replace(old, **dict.fromkeys(names, lambda x, ctx: x)) for old in model.blocks)
    )


def without_head_norms(model: Any) -> Any:
    def block(old: Any) -> Any:
        spec = replace(old.attention.qkv_spec, q_norm=None, k_norm=None)
        return replace(old, attention=replace(old.attention, qkv_spec=spec))

    return replace(model, blocks=tuple(block(old) for old in model.blocks))


def plain_global_rope(config: Any) -> Any:
    rope = config.global_rope
    return replace(config, global_rope=RopeConfig(rope.dim, rope.max_length, rope.rope_theta))


CASES = [
    Case(
        "text",
        BASE,
        off={
            "windows": lambda config: replace(config, windows=(None,) * 5),
            "which layers": lambda config: replace(config, windows=config.windows[::-1]),
            "local rope": lambda config: replace(config, local_rope=config.global_rope),
            "global rope": lambda config: replace(config, global_rope=config.local_rope),
            "query scale": lambda config: replace(config, query_scalar=float(config.head_dim)),
            "activation": lambda config: replace(config, activation="silu"),
            "eps": lambda config: replace(config, rms_norm_eps=1e-6),
        },
        cut={
            "embedding scale": lambda model: replace(model, embedding=replace(model.embedding, scale=1.0)),
            "norm after attention": without_norms("attention_out_norm"),
            "norm after mlp": without_norms("mlp_out_norm"),
            "norms of heads": without_head_norms,
        },
    ),
    Case(
        "stretched-and-capped",
        {**BASE, "rope_parameters": STRETCHED, "final_logit_softcapping": 1.5, "attention_bias": True},
        off={
            "soft cap": lambda config: replace(config, final_soft_cap=None),
            "scaling": plain_global_rope,
            "bias": lambda config: replace(config, attention_bias=False),
        },
    ),
    Case("untied", {**BASE, "tie_word_embeddings": False}),
]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    return Maker(tmp_path_factory.mktemp("gemma3"), Gemma3TextConfig, Gemma3ForCausalLM)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_scores_and_greedy_tokens_equal_the_peers(case: Case, make: Maker, ops: BoundOps) -> None:
    made = make(case)
    scores, driver, number = our_scores(made.load(ops), ops, made.prompt)
    assert error(scores, made.scores) < SAME
    assert driver.greedy(number, scores[-1], STEPS) == made.greedy
    assert [group.name for group in driver.groups] == [FULL, WINDOW]
    assert driver.pages_given_back > PROMPT // 8, "the window left no pages behind"


@pytest.mark.parametrize(("case", "switch"), switches(CASES))
def test_switching_a_feature_off_is_seen(case: Case, switch: str, make: Maker, ops: BoundOps) -> None:
    made = make(case)
    scores, _, _ = our_scores(made.load_without(switch, ops), ops, made.prompt)
    assert error(scores, made.scores) > OTHER


def test_rows_mode_gives_the_same_bits_for_any_chunk_and_batch(make: Maker) -> None:
    rows = resolve(choice="rows")
    made = make(CASES[0])
    model = made.load(rows)
    alone, _, _ = our_scores(model, rows, made.prompt)
    driver = Driver(model, rows, page_size=PAGE + 1, seed=5)
    first, second = driver.add(LIMIT), driver.add(LIMIT)
    driver.step({second: made.prompt[:11]})
    parts = [driver.step({second: made.prompt[at : at + 2], first: made.prompt[at : at + 3]}) for at in range(0, 39, 3)]
    assert torch.equal(torch.cat([part[first] for part in parts]), alone[:39])
