"""`vivace embed`: JSON lines, numpy files, lines of a file or a pipe, cosines."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.cli.conftest import FAST, TINY, Vivace

TEXTS = ("the cat sat on a mat", "a dog ran home", "the moon is bright")


def test_one_json_object_a_line_in_the_order_of_the_texts(vivace: Vivace, tiny_encoder: Path) -> None:
    done = vivace("embed", tiny_encoder, *TEXTS, *FAST)
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert [row["text"] for row in rows] == list(TEXTS)
    assert all(len(row["vector"]) == 32 for row in rows)
    # The model's files ask for normalised vectors; float32 sums of 32 squares are good to about 1e-6.
    assert np.allclose(np.linalg.norm([row["vector"] for row in rows], axis=1), 1, atol=1e-5)


def test_written_numbers_give_back_the_float32_values(vivace: Vivace, tiny_encoder: Path, tmp_path: Path) -> None:
    rows = [json.loads(line)["vector"] for line in vivace("embed", tiny_encoder, *TEXTS, *FAST).out.splitlines()]
    done = vivace("embed", tiny_encoder, *TEXTS, "--npy", tmp_path / "vectors.npy", *FAST)
    assert done.out == ""
    assert "3 vectors of 32 numbers" in done.err
    assert np.array_equal(np.load(tmp_path / "vectors.npy"), np.array(rows, dtype=np.float32))


def test_lines_of_a_file_and_of_a_pipe_are_texts(vivace: Vivace, tiny_encoder: Path, tmp_path: Path) -> None:
    lines = "\n".join(TEXTS) + "\n\n"
    (tmp_path / "texts.txt").write_text(lines)
    expected = vivace("embed", tiny_encoder, *TEXTS, *FAST).out
    assert vivace("embed", tiny_encoder, "--file", tmp_path / "texts.txt", *FAST).out == expected
    assert vivace("embed", tiny_encoder, *FAST, stdin=lines).out == expected


def test_similarity_prints_the_cosine_of_each_pair(vivace: Vivace, tiny_encoder: Path) -> None:
    printed = vivace("embed", tiny_encoder, *TEXTS, "--similarity", *FAST).out
    matrix = np.array([[float(word) for word in line.split()] for line in printed.splitlines()])
    assert matrix.shape == (3, 3)
    assert np.array_equal(np.diag(matrix), np.ones(3))
    assert np.array_equal(matrix, matrix.T)


def test_vectors_can_be_shortened_where_the_model_allows_it(vivace: Vivace, tiny_encoder: Path) -> None:
    row = json.loads(vivace("embed", tiny_encoder, TEXTS[0], "--dimensions", "8", *FAST).out)
    assert len(row["vector"]) == 8
    assert "dimensions" in vivace("embed", tiny_encoder, TEXTS[0], "--dimensions", "99", *FAST).err


def test_what_cannot_be_done_is_said(vivace: Vivace, tiny_encoder: Path) -> None:
    assert "no text to embed" in vivace("embed", tiny_encoder, *FAST).err
    assert "is for 'generate', not for 'embed'" in vivace("embed", TINY, "x", *FAST).err
    assert "No such file" in vivace("embed", tiny_encoder, "--file", "/does/not/exist", *FAST).err
