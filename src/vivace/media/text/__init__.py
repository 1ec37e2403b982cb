"""Text on the wire side: tokenizers, chat templates, incremental detokenizing, stop strings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vivace.media.text.gguf import load_gguf_tokenizer
from vivace.media.text.hf import load_hf_tokenizer
from vivace.media.text.llama2c import load_llama2c_tokenizer
from vivace.media.text.tokenizer import Tokenizer

__all__ = ["Tokenizer", "load_tokenizer"]


def load_tokenizer(source: Path | Mapping[str, Any]) -> Tokenizer:
    """Load a tokenizer from what is there: a Hugging Face folder, the metadata of a GGUF file, or a llama2.c file.

    Raises ModelError when it is missing or damaged, UnsupportedModel when its kind is not known.
    """
    if isinstance(source, Mapping):
        return load_gguf_tokenizer(source)
    return load_hf_tokenizer(source) if source.is_dir() else load_llama2c_tokenizer(source)
