"""Rename rules: placeholders, which rule decides, and alternative spellings."""

from __future__ import annotations

import pytest

from vivace.weights.rename import (
    LEGACY_NORM_NAMES,
    NamePattern,
    Rename,
    spellings,
    with_prefix,
    without_prefix,
)

GGUF = (
    Rename("model.embed_tokens.weight", "token_embd.weight"),
    Rename("model.layers.{i}.self_attn.q_proj.weight", "blk.{i}.attn_q.weight", "unpermute_rope", by="num_heads"),
    Rename("model.layers.{i}.mlp.experts.{j}.up.weight", "blk.{i}.up.{j}.weight"),
)


def names(name: str, rules: tuple[Rename, ...]) -> list[str]:
    return [spelling.name for spelling in spellings(name, rules)]


def test_placeholders_carry_their_numbers_over() -> None:
    assert names("model.layers.12.self_attn.q_proj.weight", GGUF) == ["blk.12.attn_q.weight"]
    assert names("model.layers.3.mlp.experts.40.up.weight", GGUF) == ["blk.3.up.40.weight"]


def test_a_placeholder_matches_numbers_only() -> None:
    assert names("model.layers.x.self_attn.q_proj.weight", GGUF) == ["model.layers.x.self_attn.q_proj.weight"]


def test_dots_of_a_rule_are_literal() -> None:
    assert NamePattern("a.b").match("axb") is None


def test_the_first_fitting_rule_decides() -> None:
    rules = (Rename("a.{rest}", "first.{rest}"), Rename("a.b", "second"))
    assert names("a.b", rules) == ["first.b"]


def test_optional_rules_add_spellings_in_every_combination() -> None:
    rules = (*LEGACY_NORM_NAMES, with_prefix("bert."))
    assert names("x.LayerNorm.weight", rules) == [
        "x.LayerNorm.weight", "x.LayerNorm.gamma", "bert.x.LayerNorm.weight", "bert.x.LayerNorm.gamma",
    ]  # fmt: skip
    assert names("x.LayerNorm.bias", LEGACY_NORM_NAMES) == ["x.LayerNorm.bias", "x.LayerNorm.beta"]


def test_a_prefix_of_our_names_may_be_missing_in_the_file() -> None:
    assert names("model.norm.weight", (without_prefix("model."),)) == ["model.norm.weight", "norm.weight"]


def test_a_transform_stays_with_an_optional_prefix() -> None:
    rules = (Rename("norm.weight", "norm.weight", "offset_one"), with_prefix("language_model."))
    for spelling in spellings("norm.weight", rules):
        assert spelling.rules[0].transform == "offset_one"


def test_a_rule_cannot_invent_placeholders() -> None:
    with pytest.raises(AssertionError, match="placeholders differ"):
        Rename("a.{i}", "b.{j}")
