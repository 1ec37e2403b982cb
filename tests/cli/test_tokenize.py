"""`vivace tokenize`: ids, pieces and back."""

from __future__ import annotations

import json

from tests.cli.conftest import TINY, Vivace

TEXT = "The cat <|im_end|> sat."


def test_ids_decode_to_the_text(vivace: Vivace) -> None:
    ids = vivace("tokenize", TINY, TEXT, "--ids").out
    assert vivace("tokenize", TINY, ids, "--decode").out == f"{TEXT}\n"
    assert vivace("tokenize", TINY, "--decode", stdin=f"[{', '.join(ids.split())}]").out == f"{TEXT}\n"


def test_the_table_has_a_line_per_token_and_their_number(vivace: Vivace) -> None:
    ids = vivace("tokenize", TINY, TEXT, "--ids").out.split()
    *rows, last = vivace("tokenize", TINY, TEXT).out.splitlines()
    assert [row.split()[0] for row in rows] == ids
    assert last == f"{len(ids)} tokens"


def test_text_is_control_only_when_asked(vivace: Vivace) -> None:
    plain = json.loads(vivace("tokenize", TINY, TEXT, "--json").out)
    special = json.loads(vivace("tokenize", TINY, TEXT, "--json", "--parse-special").out)
    assert "<|im_end|>" not in plain["pieces"]
    assert "<|im_end|>" in special["pieces"]
    assert special["count"] == len(special["ids"]) < plain["count"]


def test_a_word_that_is_no_id_is_named(vivace: Vivace) -> None:
    done = vivace("tokenize", TINY, "1 two 3", "--decode")
    assert done.code == 1
    assert "'two' is no token id" in done.err
    assert "outside the vocabulary" in vivace("tokenize", TINY, "99999", "--decode").err
    assert "999...' is no token id" in vivace("tokenize", TINY, "9" * 5000, "--decode").err
