"""tokenizer.json: ids and text equal transformers'; truncation equals sentence-transformers'."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.media.text.corpus import TEXTS
from tests.media.text.small_tokenizers import MAKERS, save_folder
from vivace.errors import InvalidRequest, ModelError
from vivace.media.text.hf import LONG_TEXT, HFTokenizer, load_hf_tokenizer
from vivace.media.text.tokenizer import Segment

_SPECIAL_TEXTS = [
    "<s>Hello<|im_end|> there  <|end|>  more <mask>text <think>\nhm</think> <|im_start|>",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "   <mask>  <|end|>\n\n<s></s><unk>[CLS] [MASK] a[SEP]b",
]


@pytest.fixture(scope="module", params=sorted(MAKERS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[HFTokenizer, Any]:
    folder = save_folder(tmp_path_factory.mktemp("tokenizer"), request.param)
    return load_hf_tokenizer(folder), AutoTokenizer.from_pretrained(folder)


def test_plain_text_gives_the_ids_of_transformers_with_split_special_tokens(pair: tuple[HFTokenizer, Any]) -> None:
    ours, theirs = pair
    for text in TEXTS + _SPECIAL_TEXTS:
        expected = theirs.encode(text, add_special_tokens=False, split_special_tokens=True)
        assert ours.encode(text) == expected, text


def test_a_long_text_gives_the_ids_of_transformers(pair: tuple[HFTokenizer, Any]) -> None:
    ours, theirs = pair
    text = "".join(TEXTS)
    text *= 2 * LONG_TEXT // len(text) + 1
    assert ours.encode(text) == theirs.encode(text, add_special_tokens=False, split_special_tokens=True)


def test_other_threads_run_while_a_long_text_is_encoded(tmp_path: Path) -> None:
    ours = load_hf_tokenizer(save_folder(tmp_path, "byte_level"))
    text = "a long text " * (8 * LONG_TEXT)
    worker = threading.Thread(target=ours.encode, args=(text,))
    turns = 0
    worker.start()
    while worker.is_alive():
        turns += 1
        time.sleep(0)
    assert turns > 100, "a call that holds the interpreter's lock to its end leaves room for a few turns around it"


def test_parsed_special_tokens_give_the_ids_of_transformers(pair: tuple[HFTokenizer, Any]) -> None:
    ours, theirs = pair
    for text in TEXTS + _SPECIAL_TEXTS:
        assert ours.encode(text, parse_special=True) == theirs.encode(text, add_special_tokens=False), text


def test_a_prompt_gets_what_transformers_puts_around_it(pair: tuple[HFTokenizer, Any]) -> None:
    ours, theirs = pair
    encode = getattr(ours, "encode_with_template" if theirs.cls_token else "encode_prompt")
    assert encode("Hello world") == theirs.encode("Hello world")


@pytest.mark.parametrize("skip_special", [True, False])
def test_decoding_gives_the_text_of_transformers(pair: tuple[HFTokenizer, Any], skip_special: bool) -> None:
    ours, theirs = pair
    for text in [*TEXTS, *_SPECIAL_TEXTS, "unknown ☃☃ and ꙮ", "▁▁▁ \n\n\n\n\n"]:
        ids = theirs.encode(text)
        assert ours.decode(ids, skip_special=skip_special) == theirs.decode(ids, skip_special_tokens=skip_special), text


def test_plain_text_never_becomes_a_special_token(pair: tuple[HFTokenizer, Any]) -> None:
    ours, _ = pair
    names = [token.text for token in ours.vocabulary.special]
    for text in [*names, "".join(names), " ".join(names), *_SPECIAL_TEXTS]:
        assert ours.special_ids.isdisjoint(ours.encode(text)), text


def test_plain_segments_are_encoded_as_one_run(pair: tuple[HFTokenizer, Any]) -> None:
    ours, _ = pair
    text = TEXTS[0]
    segments = [Segment(text[i : i + 3], is_template=bool(i % 2)) for i in range(0, len(text), 3)]
    assert ours.encode_segments(segments) == ours.encode(text)


def test_a_piece_that_spells_a_special_token_is_taken_apart(tmp_path: Path) -> None:
    folder = save_folder(tmp_path, "byte_level")
    state = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    state["model"]["ignore_merges"] = True
    state["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    (folder / "tokenizer.json").write_text(json.dumps(state), "utf-8")
    ours = load_hf_tokenizer(folder)
    ids = ours.encode("<|im_end|>")
    assert ours.special_ids.isdisjoint(ids)
    assert ours.decode(ids) == "<|im_end|>"


def test_several_end_ids_come_from_the_generation_config(tmp_path: Path) -> None:
    folder = save_folder(tmp_path, "byte_level")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [4, 2]}), "utf-8")
    assert load_hf_tokenizer(folder).eos_ids == {2, 4}


@pytest.mark.parametrize("add_bos", [True, False])
def test_the_post_processor_decides_about_bos_as_in_transformers(tmp_path: Path, add_bos: bool) -> None:
    for kind in ("metaspace", "prepend"):
        folder = save_folder(tmp_path / kind, kind, add_bos_token=add_bos)
        ours, theirs = load_hf_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
        assert ours.encode_prompt("Hello") == theirs.encode("Hello")


def test_tokens_named_in_the_configuration_are_special_though_the_file_does_not_say_so(tmp_path: Path) -> None:
    folder = save_folder(tmp_path, "byte_level", additional_special_tokens=["<think>"], pad_token="<pad>")
    ours, theirs = load_hf_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    assert ours.special_ids.isdisjoint(ours.encode("a <think> <pad>"))
    assert ours.encode("a <think>b<pad>", parse_special=True) == theirs.encode("a <think>b<pad>")


def test_truncation_keeps_the_template_and_cuts_the_end(tmp_path: Path) -> None:
    folder = save_folder(tmp_path, "wordpiece")
    ours, theirs = load_hf_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    for length in (2, 3, 8, 30):
        expected = theirs.encode(TEXTS[0], truncation=True, max_length=length)
        assert ours.encode_with_template(TEXTS[0], length) == expected


def test_token_bytes_of_a_byte_level_text_join_to_its_bytes(tmp_path: Path) -> None:
    ours = load_hf_tokenizer(save_folder(tmp_path, "byte_level"))
    for text in TEXTS:
        assert b"".join(map(ours.token_bytes, ours.encode(text))) == text.encode("utf-8")


@pytest.mark.parametrize("token_id", [-1, 10**6])
def test_an_unknown_id_is_an_error_that_names_the_range(tmp_path: Path, token_id: int) -> None:
    ours = load_hf_tokenizer(save_folder(tmp_path, "byte_level"))
    with pytest.raises(InvalidRequest, match=f"token id {token_id} is outside the vocabulary"):
        ours.decode([token_id])


def test_a_folder_without_tokenizer_and_a_damaged_one_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        load_hf_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": 3}', "utf-8")
    with pytest.raises(ModelError, match="is not a tokenizer"):
        load_hf_tokenizer(tmp_path)


@pytest.mark.real
def test_minilm_gives_the_ids_of_transformers(real_model: Any) -> None:
    folder = real_model("minilm")
    ours, theirs = load_hf_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        expected = theirs.encode(text, truncation=True, max_length=128, split_special_tokens=True)
        assert ours.encode_with_template(text, 128) == expected, text
