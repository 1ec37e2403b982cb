"""The llama2.c tokenizer: the published ids, byte fallback, damaged files."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path

import pytest

from vivace.errors import ModelError
from vivace.media.text import load_tokenizer
from vivace.media.text.llama2c import Llama2cTokenizer, load_llama2c_tokenizer


def _pieces() -> list[tuple[str, float]]:
    letters = [(letter, -1000.0) for letter in " abcd"]
    merged = [("ab", -1.0), ("bc", -0.5), (" a", -2.0), ("abc", -0.1), ("bcd", -3.0)]
    return [("<unk>", 0.0), ("\n<s>\n", 0.0), ("\n</s>\n", 0.0), *((f"<0x{b:02X}>", 0.0) for b in range(256))] + (
        letters + merged
    )


def _write(path: Path, pieces: list[tuple[str, float]]) -> Path:
    data = [text.encode("utf-8") for text, _ in pieces]
    entries = [struct.pack("<fi", score, len(d)) + d for d, (_, score) in zip(data, pieces, strict=True)]
    path.write_bytes(struct.pack("<i", max(map(len, data))) + b"".join(entries))
    return path


def _encode_like_run_c(pieces: list[tuple[str, float]], text: str) -> list[int]:
    """The loop of run.c: characters or bytes first, then the best pair again and again, rescanned each time."""
    ids = {piece: i for i, (piece, _) in enumerate(pieces)}
    tokens: list[int] = []
    for char in " " + text:
        tokens += [ids[char]] if char in ids else [byte + 3 for byte in char.encode("utf-8")]
    while True:
        unions = [pieces[a][0] + pieces[b][0] for a, b in itertools.pairwise(tokens)]
        found = [(-pieces[ids[union]][1], at, ids[union]) for at, union in enumerate(unions) if union in ids]
        if not found:
            return tokens
        _, at, token_id = min(found)
        tokens[at : at + 2] = [token_id]


@pytest.mark.parametrize("text", ["abcd", "abc abcd bc", "a é日 b", "  ab", "dcba", "😀abc\n"])
def test_ids_equal_the_plain_loop(tmp_path: Path, text: str) -> None:
    tokenizer = load_tokenizer(_write(tmp_path / "tok.bin", _pieces()))
    assert tokenizer.encode(text) == _encode_like_run_c(_pieces(), text)
    assert tokenizer.decode(tokenizer.encode_prompt(text)) == text


def test_plain_text_never_becomes_a_control_token() -> None:
    tokenizer = Llama2cTokenizer(_pieces())
    assert tokenizer.special_ids.isdisjoint(tokenizer.encode("<s></s><unk>\n<s>\n"))
    assert tokenizer.encode("<s>", parse_special=True) == [1]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x07\0\0\0\0\0", "an entry is cut off"),
        (b"\x07\0\0\0" + struct.pack("<fi", 0.0, -1), "a piece of -1 bytes"),
        (b"\x07\0\0\0" + struct.pack("<fi", 0.0, 2**31 - 1) + b"ab", "a piece of 2147483647 bytes"),
        (b"\x07\0\0\0" + struct.pack("<fi", 0.0, 2) + b"ab", "1 pieces, expected at least 259"),
        (b"", "0 pieces"),
    ],
)
def test_a_damaged_file_is_an_error_that_names_the_place(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "tok.bin").write_bytes(data)
    with pytest.raises(ModelError, match=message):
        load_llama2c_tokenizer(tmp_path / "tok.bin")


@pytest.mark.real
def test_the_published_story_is_its_200_tokens(test_data: Path) -> None:
    tokenizer = load_llama2c_tokenizer(test_data / "models" / "tok512.bin")
    story = (test_data / "models" / "stories260K_greedy200.txt").read_text("utf-8")
    ids = tokenizer.encode_prompt(story)
    assert len(ids) == 201
    assert tokenizer.decode(ids) == story
