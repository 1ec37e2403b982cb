"""Which of the words on the command line is the model: `vivace run smollm2 "Hi"` and `vivace run "Hi there"`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from vivace.weights.entries import Catalog
from vivace.weights.hub import parse_hub_name


def can_be_model(word: str) -> bool:
    """Whether a word names a model: a short name, an existing path, or something that is written like a hub id."""
    return word in Catalog().entries or _exists(word) or (not _has_space(word) and parse_hub_name(word) is not None)


def model_and_prompt(words: Sequence[str], default: str) -> tuple[str, str | None]:
    """The model and the prompt: the first word is the model, except that a single one with a space in it is a prompt.

    Raises BadParameter for more than two words: a prompt is one argument.
    """
    if len(words) > 2:
        raise typer.BadParameter(f"{len(words)} arguments, expected a model and a prompt: put quotes around the prompt")
    if len(words) == 2:
        return words[0], words[1]
    if len(words) == 1 and _has_space(words[0]) and not _exists(words[0]):
        return default, words[0]
    return (words[0] if words else default), None


def model_and_texts(words: Sequence[str], default: str) -> tuple[str, list[str]]:
    """The model and the texts: the first word is the model if it can be one, else all are texts."""
    if words and can_be_model(words[0]):
        return words[0], list(words[1:])
    return default, list(words)


def _has_space(word: str) -> bool:
    return any(character.isspace() for character in word)


def _exists(word: str) -> bool:
    try:
        return bool(word) and Path(word).expanduser().exists()
    except (OSError, RuntimeError, ValueError):  # too long for a path, no such user, a null byte
        return False
