"""Which word is the model."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from vivace.cli.words import can_be_model, model_and_prompt, model_and_texts


def test_the_first_word_is_the_model_and_the_second_the_prompt() -> None:
    assert model_and_prompt(["gemma3-270m", "Hello"], "smollm2") == ("gemma3-270m", "Hello")
    assert model_and_prompt(["gemma3-270m"], "smollm2") == ("gemma3-270m", None)
    assert model_and_prompt([], "smollm2") == ("smollm2", None)


def test_a_single_word_with_a_space_is_a_prompt_unless_it_is_a_path(tmp_path: Path) -> None:
    assert model_and_prompt(["What is it?"], "smollm2") == ("smollm2", "What is it?")
    folder = tmp_path / "my model"
    folder.mkdir()
    assert model_and_prompt([str(folder)], "smollm2") == (str(folder), None)


def test_a_misspelt_model_stays_a_model_so_that_its_error_can_name_the_nearest() -> None:
    assert model_and_prompt(["smolm2", "Hello there"], "smollm2") == ("smolm2", "Hello there")
    assert model_and_prompt(["smolm2"], "smollm2") == ("smolm2", None)


def test_more_than_two_words_ask_for_quotes() -> None:
    with pytest.raises(typer.BadParameter, match="quotes"):
        model_and_prompt(["smollm2", "What", "is"], "smollm2")


def test_texts_follow_the_model_or_stand_alone() -> None:
    assert model_and_texts(["minilm", "a", "b"], "minilm") == ("minilm", ["a", "b"])
    assert model_and_texts(["a cat", "a dog"], "minilm") == ("minilm", ["a cat", "a dog"])
    assert model_and_texts(["org/name", "a dog"], "minilm") == ("org/name", ["a dog"])


@pytest.mark.parametrize("word", ["", "hello", "two words", "a\0b", "x" * 5000, "~nobody-of-that-name/x y"])
def test_odd_words_are_no_models(word: str) -> None:
    assert not can_be_model(word)
