"""Foreign names lead to families, and unknown ones to the nearest known."""

from __future__ import annotations

import pytest

from vivace.errors import UnsupportedModel
from vivace.models.base import Family
from vivace.models.index import ARCHITECTURES, GGUF_ARCHITECTURES, MODEL_TYPES, family_of_config, family_of_gguf
from vivace.registry import Registry


@pytest.mark.parametrize("table", [ARCHITECTURES, MODEL_TYPES, GGUF_ARCHITECTURES], ids=lambda table: table.kind)
def test_every_name_leads_to_a_family(table: Registry) -> None:
    for name in table:
        family = table.load(name)
        assert isinstance(family, Family)
        assert table is not GGUF_ARCHITECTURES or "gguf" in family.readers


def test_the_architecture_says_more_than_the_model_type() -> None:
    assert family_of_config({"architectures": ["Qwen3ForCausalLM"], "model_type": "llama"}).name == "qwen3"
    assert family_of_config({"model_type": "bert"}).name == "bert"
    assert family_of_gguf({"general.architecture": "gemma3"}).name == "gemma3"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"architectures": ["LlamaForCasualLM"]}, "did you mean 'LlamaForCausalLM'"),
        ({"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3"}, "is not supported"),
        ({"model_type": "quen3"}, "did you mean 'qwen3'"),
        ({}, "neither 'architectures' nor 'model_type'"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(config: dict[str, object], words: str) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        family_of_config(config)
    assert words in str(caught.value)


def test_an_unknown_gguf_architecture_is_named() -> None:
    with pytest.raises(UnsupportedModel, match="'llama7' is not supported"):
        family_of_gguf({"general.architecture": "llama7"})
    with pytest.raises(UnsupportedModel, match=r"lacks 'general\.architecture'"):
        family_of_gguf({})
