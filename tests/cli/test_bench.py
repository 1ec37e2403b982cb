"""`vivace bench engine`: a table and a file, and the ratios of two files."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import FAST, TINY, Vivace

WORK = ("--prefill", "16", "--streams", "1", "--streams", "2", "--context", "8", "--tokens", "3", "--repeats", "1")


def test_a_run_prints_its_table_and_writes_its_file(vivace: Vivace, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    done = vivace("bench", "engine", TINY, *WORK, "--running", "0", "--json", file, "--steps-profile", *FAST)
    assert done.code == 0, done.err
    for text in ("decode 2", "tokens_per_s", "ceilings: read", "resident memory", "sampling"):
        assert text in done.out
    report = json.loads(file.read_text())
    assert report["settings"]["streams"] == [1, 2]
    compared = vivace("bench", "engine", "--compare", file, file)
    assert "1.00" in compared.out
    file.write_text("[]")
    assert "expected a report" in vivace("bench", "engine", "--compare", file, file).err


def test_a_model_that_makes_vectors_is_refused(vivace: Vivace, tiny_encoder: Path) -> None:
    done = vivace("bench", "engine", tiny_encoder, *WORK, *FAST)
    assert done.code == 1
    assert "makes vectors" in done.err
