"""The incremental detokenizer: any cut of the stream gives the text of one whole decode."""

from __future__ import annotations

import gzip
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.media.text.make_golden import GOLDEN, cases
from vivace.errors import InvalidRequest
from vivace.media.text.detokenize import Detokenizer
from vivace.media.text.gguf import load_gguf_tokenizer

_SMALL = cases(json.loads(gzip.decompress(GOLDEN.read_bytes()))["small"])
_TOKENIZERS = {
    name: load_gguf_tokenizer(_SMALL[name])
    for name in ("bpe/qwen2", "sentencepiece/prefix=True", "sentencepiece/prefix=False")
}
_SIZE = min(tokenizer.vocab_size for tokenizer in _TOKENIZERS.values())

# Ids of any kind, with many single bytes among them, since those cut characters apart.
_IDS = st.lists(st.integers(0, _SIZE - 1) | st.integers(5, 261), max_size=30)
_CUTS = st.lists(st.integers(0, 30), max_size=6)
_NAMES = st.sampled_from(sorted(_TOKENIZERS))


def _stream(detokenizer: Detokenizer, ids: list[int], cuts: list[int]) -> str:
    borders = sorted({0, len(ids), *(cut for cut in cuts if cut < len(ids))})
    pieces = [detokenizer.feed(ids[start:end]) for start, end in itertools.pairwise(borders)]
    return "".join(pieces) + detokenizer.flush()


@given(_NAMES, _IDS, _CUTS, st.booleans())
def test_any_cut_gives_the_whole_decode(name: str, ids: list[int], cuts: list[int], skip_special: bool) -> None:
    tokenizer = _TOKENIZERS[name]
    streamed = _stream(Detokenizer(tokenizer, skip_special=skip_special), ids, cuts)
    assert streamed == tokenizer.decode(ids, skip_special=skip_special)


@given(_NAMES, st.text(max_size=20), st.text(min_size=1, max_size=20), st.integers(0, 40))
def test_prompt_and_answer_join_to_the_whole_text_wherever_the_prompt_ends(
    name: str, before: str, after: str, cut: int
) -> None:
    tokenizer = _TOKENIZERS[name]
    ids = tokenizer.encode("x" + before + after)
    prompt, generated = ids[: cut + 1], ids[cut + 1 :]
    answer = _stream(Detokenizer(tokenizer, prompt), generated, [])
    whole = tokenizer.decode(ids)
    assert whole.endswith(answer)
    shown_before = tokenizer.decode(prompt).rstrip("\ufffd")
    assert answer == "" or whole == shown_before + answer or "\ufffd" in before + after


def test_a_character_that_the_prompt_began_counts_as_generated_once_complete() -> None:
    tokenizer = _TOKENIZERS["bpe/qwen2"]
    data = "你好".encode()
    ids = [token_id for byte in data for token_id in range(tokenizer.vocab_size) if _is_byte(token_id, byte)]
    detokenizer = Detokenizer(tokenizer, ids[:2])
    assert [detokenizer.feed([token_id]) for token_id in ids[2:]] == ["你", "", "", "好"]


def test_bytes_of_the_prompt_alone_are_never_shown() -> None:
    tokenizer = _TOKENIZERS["bpe/qwen2"]
    start = next(i for i in range(tokenizer.vocab_size) if _is_byte(i, 0xE4))
    assert Detokenizer(tokenizer, [start]).feed(tokenizer.encode("a")) == "a"
    unfinished = Detokenizer(tokenizer, [start])
    assert unfinished.flush() == ""


def test_no_replacement_character_shows_before_the_end_of_the_stream() -> None:
    tokenizer = _TOKENIZERS["sentencepiece/prefix=False"]
    ids = tokenizer.encode("😀👨‍👩‍👧🏳️‍🌈 कि 𝔘")
    detokenizer = Detokenizer(tokenizer)
    assert all("\ufffd" not in detokenizer.feed([token_id]) for token_id in ids)
    assert detokenizer.flush() == ""


def test_the_leading_space_goes_only_where_no_text_stands_before() -> None:
    tokenizer = _TOKENIZERS["sentencepiece/prefix=True"]
    ids = tokenizer.encode("hello")
    assert Detokenizer(tokenizer).feed(ids) == "hello"
    assert Detokenizer(tokenizer, [1]).feed(ids) == "hello"
    assert Detokenizer(tokenizer, tokenizer.encode("say")).feed(ids) == " hello"


@given(_NAMES, _IDS)
def test_spans_follow_each_other_and_point_into_the_text(name: str, ids: list[int]) -> None:
    tokenizer = _TOKENIZERS[name]
    detokenizer = Detokenizer(tokenizer)
    text = detokenizer.feed(ids) + detokenizer.flush()
    spans = detokenizer.spans
    assert [span.token_id for span in spans] == ids
    assert all(a.byte_end == b.byte_start and a.start <= b.start for a, b in itertools.pairwise(spans))
    assert all(0 <= span.start <= len(text) for span in spans)


def test_a_token_within_a_character_starts_at_that_character() -> None:
    tokenizer = _TOKENIZERS["bpe/qwen2"]
    pieces = [
        token_id for byte in "a😀b".encode() for token_id in range(tokenizer.vocab_size) if _is_byte(token_id, byte)
    ]
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.feed(pieces) == "a😀b"
    assert [span.start for span in detokenizer.spans] == [0, 1, 1, 1, 1, 2]


def test_an_unknown_id_is_an_error() -> None:
    with pytest.raises(InvalidRequest, match="outside the vocabulary"):
        Detokenizer(_TOKENIZERS["bpe/qwen2"]).feed([10**6])


def _is_byte(token_id: int, byte: int) -> bool:
    return _TOKENIZERS["bpe/qwen2"].token_bytes(token_id) == bytes([byte])
