"""Strict reading of configurations."""

from __future__ import annotations

from typing import Any

import pytest

from vivace.errors import UnsupportedModel
from vivace.models.fields import Fields, read_windows


def test_a_key_that_was_not_read_is_an_error_that_names_the_nearest() -> None:
    fields = Fields({"hidden_size": 4, "hiden_size": 8}, "config.json")
    fields.size("hidden_size")
    with pytest.raises(UnsupportedModel, match="'hiden_size'") as caught:
        fields.finish()
    assert "did you mean 'hidden_size'" in str(caught.value)


@pytest.mark.parametrize("value", [None, False, [], {}, ""])
def test_an_unknown_key_that_is_off_does_no_harm(value: Any) -> None:
    Fields({"some_new_option": value}, "config.json").finish()


def test_bookkeeping_does_no_harm() -> None:
    Fields({"torch_dtype": "bfloat16", "_name_or_path": "x", "architectures": ["A"]}, "config.json").finish()


@pytest.mark.parametrize("value", [True, 4.0, "4", [4]])
def test_a_value_of_another_type_is_refused(value: Any) -> None:
    with pytest.raises(UnsupportedModel, match="expected int"):
        Fields({"hidden_size": value}, "config.json").size("hidden_size")


@pytest.mark.parametrize("value", [0, -3, 1 << 60])
def test_a_size_out_of_bounds_is_refused(value: int) -> None:
    with pytest.raises(UnsupportedModel, match="expected 1 to"):
        Fields({"hidden_size": value}, "config.json").size("hidden_size")


def test_an_integer_serves_as_a_float_and_null_as_not_given() -> None:
    fields = Fields({"eps": 1, "cap": None}, "config.json")
    assert fields.get("eps", float) == 1.0
    assert fields.get("cap", float, 30.0) == 30.0


def test_a_missing_key_is_named() -> None:
    with pytest.raises(UnsupportedModel, match="lacks 'hidden_size'"):
        Fields({"hidden_sizes": 3}, "config.json").size("hidden_size")


def test_heads_must_divide() -> None:
    with pytest.raises(UnsupportedModel, match="6 query heads cannot share 4"):
        Fields({"heads": 6, "kv": 4}, "config.json").heads("heads", "kv")


@pytest.mark.parametrize(
    ("kinds", "window", "words"),
    [
        ("full_attention", 8, "expected a list"),
        (["full_attention"], 8, "1 entries, the model has 2 layers"),
        (["full_attention", "linear_attention"], 8, "'linear_attention' are not known"),
        (["full_attention", "sliding_attention"], None, "no 'sliding_window'"),
    ],
)
def test_layer_types_must_fit(kinds: Any, window: int | None, words: str) -> None:
    with pytest.raises(UnsupportedModel, match=words):
        read_windows(Fields({"layer_types": kinds}, "config.json"), 2, window, ["full_attention"] * 2)
