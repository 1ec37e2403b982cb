"""Tokenizers from GGUF metadata: ids equal llama.cpp's, as stored in golden.json.gz by make_golden.py."""

from __future__ import annotations

import gzip
import json
import time
from typing import Any

import pytest

from tests.media.text.corpus import TEXTS
from tests.media.text.make_golden import GOLDEN, cases
from vivace.errors import ModelError, UnsupportedModel
from vivace.media.text.gguf import load_gguf_tokenizer
from vivace.weights.gguf import GgufFile

_WHOLE = json.loads(gzip.decompress(GOLDEN.read_bytes()))
_CASES = cases(_WHOLE["small"])


@pytest.mark.parametrize("name", sorted(_CASES))
def test_small_vocabularies_give_llama_cpps_ids(name: str) -> None:
    tokenizer = load_gguf_tokenizer(_CASES[name])
    for text, expected in zip(TEXTS, _WHOLE["ids"][name], strict=True):
        if name == "wordpiece/lowercase=True" and any("가" <= char <= "힣" for char in text):
            continue  # llama.cpp drops the vowels when it takes a Korean syllable apart; BERT's own tokenizer does not
        assert tokenizer.encode(text) == expected, text


@pytest.mark.real
@pytest.mark.parametrize("name", ["smollm2", "gemma3-270m"])
def test_real_files_give_llama_cpps_ids(name: str, real_model: Any) -> None:
    tokenizer = load_gguf_tokenizer(_metadata(real_model(name)))
    for text, expected in zip(TEXTS, _WHOLE["ids"][name], strict=True):
        assert tokenizer.encode(text) == expected, text


@pytest.mark.real
def test_a_vocabulary_of_262144_loads_about_as_fast_as_its_lists_are_read(real_model: Any) -> None:
    metadata = _metadata(real_model("gemma3-270m"))
    started = time.process_time()
    for key in ("tokens", "scores", "token_type"):
        list(metadata[f"tokenizer.ggml.{key}"])
        [str(entry) for entry in metadata[f"tokenizer.ggml.{key}"]]
    reading = time.process_time() - started
    started = time.process_time()
    load_gguf_tokenizer(metadata)
    # A few passes over the lists; merges derived from scores would take some hundred.
    assert time.process_time() - started < 20 * max(reading, 0.05)


@pytest.mark.parametrize("name", sorted(_CASES))
def test_plain_text_never_becomes_a_control_token(name: str) -> None:
    tokenizer = load_gguf_tokenizer(_CASES[name])
    for text in [*TEXTS, *(token.text for token in tokenizer.vocabulary.special)]:
        assert tokenizer.special_ids.isdisjoint(tokenizer.encode(text)), text


@pytest.mark.parametrize("name", ["bpe/qwen2", "sentencepiece/prefix=False", "sentencepiece/prefix=True"])
def test_decoding_gives_the_text_back(name: str) -> None:
    tokenizer = load_gguf_tokenizer(_CASES[name])
    for text in ["Hello world", "été 日本 😀", "tab\tline\nend"]:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_control_tokens_are_parsed_on_request() -> None:
    tokenizer = load_gguf_tokenizer(_CASES["bpe/qwen2"])
    ids = tokenizer.encode("<|im_start|>user", parse_special=True)
    assert tokenizer.token_text(ids[0]) == "<|im_start|>"
    assert tokenizer.encode("user") == ids[1:]


def test_all_tokens_that_end_a_turn_end_an_answer() -> None:
    tokenizer = load_gguf_tokenizer(_CASES["bpe/qwen2"])
    assert {tokenizer.token_text(token_id) for token_id in tokenizer.eos_ids} == {"</s>", "<|im_end|>"}


def test_bos_is_added_once_where_the_kind_or_the_file_asks() -> None:
    by_kind = load_gguf_tokenizer(_CASES["bpe/llama3"])
    assert by_kind.encode_prompt("hi")[0] == by_kind.bos_id
    assert by_kind.encode_prompt("<s>hi", parse_special=True).count(1) == 1
    silent = load_gguf_tokenizer({**_CASES["bpe/llama3"], "tokenizer.ggml.add_bos_token": False})
    assert silent.encode_prompt("hi") == silent.encode("hi")


def test_an_unknown_pre_tokenizer_kind_warns_and_uses_the_default() -> None:
    metadata = {**_CASES["bpe/default"], "tokenizer.ggml.pre": "qwen9"}
    with pytest.warns(UserWarning, match=r"unknown pre-tokenizer kind 'qwen9'.*did you mean 'qwen2'"):
        tokenizer = load_gguf_tokenizer(metadata)
    assert tokenizer.encode(TEXTS[0]) == _WHOLE["ids"]["bpe/default"][0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.tokens": None}, r"no tokenizer\.ggml\.tokens"),
        ({"tokenizer.ggml.merges": None}, r"no tokenizer\.ggml\.merges"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "token_type has 2 entries"),
    ],
)
def test_missing_and_short_lists_are_errors(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load_gguf_tokenizer({**_CASES["bpe/default"], **change})


@pytest.mark.parametrize("change", [{"tokenizer.ggml.model": "t5"}, {"tokenizer.ggml.pre": "gemma4"}])
def test_kinds_that_are_not_built_say_so(change: dict[str, str]) -> None:
    with pytest.raises(UnsupportedModel):
        load_gguf_tokenizer({**_CASES["bpe/default"], **change})


def test_an_encoders_text_stands_between_cls_and_sep_and_is_cut_at_its_end() -> None:
    tokenizer = load_gguf_tokenizer(_CASES["wordpiece/lowercase=True"])
    whole = tokenizer.encode_with_template("the quick brown fox")  # type: ignore[attr-defined]
    assert (whole[0], whole[-1]) == (2, 3)
    assert tokenizer.encode_with_template("the quick brown fox", 4) == [*whole[:3], 3]  # type: ignore[attr-defined]


def _metadata(path: Any) -> Any:
    return GgufFile(path).metadata
