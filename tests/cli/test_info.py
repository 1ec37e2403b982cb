"""`vivace info`: every section, with values in force."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import TINY, Vivace
from vivace import __version__
from vivace.config import VARIABLES
from vivace.kernels.select import resolve


def test_it_tells_version_machine_kernels_determinism_settings_and_models(vivace: Vivace) -> None:
    report = json.loads(vivace("info", "--json", "--threads", "1").out)
    assert list(report) == [
        *("vivace", "machine", "torch", "kernels", "determinism", "engine", "environment", "models"),
    ]
    assert report["vivace"]["version"] == __version__
    assert report["machine"]["cores"] >= 1
    assert report["engine"]["threads"] == 1
    assert report["kernels"]["operations"].keys() == resolve(choice="ref").bound.keys()


def test_text_holds_every_section(vivace: Vivace) -> None:
    text = vivace("info", "--threads", "1").out
    for title in ("vivace", "machine", "torch", "kernels", "determinism", "engine", "environment", "models"):
        assert f"{title}\n  " in text


def test_it_says_which_kernels_break_the_determinism_contract(vivace: Vivace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIVACE_KERNELS", "ref")
    assert "holds     no" in vivace("info").out
    assert "depends on its batch" in vivace("info", "--kernels").out
    monkeypatch.setenv("VIVACE_KERNELS", "rows")
    report = json.loads(vivace("info", "--json").out)
    assert report["determinism"]["holds"] is True
    assert report["engine"]["kernels"] == "rows"


def test_environment_shows_each_variable_and_no_key(vivace: Vivace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIVACE_API_KEY", "sk-very-secret")
    monkeypatch.setenv("VIVACE_OFFLINE", "1")
    text = vivace("info", "--env").out
    assert "sk-very-secret" not in text
    assert all(variable.name in text for variable in VARIABLES)
    assert "VIVACE_OFFLINE         1:" in text
    monkeypatch.setenv("VIVACE_OFLINE", "1")
    done = vivace("info", "--env")
    assert done.code == 1
    assert "did you mean 'VIVACE_OFFLINE'?" in done.err


def test_a_model_is_described_from_its_files(vivace: Vivace) -> None:
    facts = json.loads(vivace("info", "--model", TINY, "--json").out)["model"]
    assert (facts["family"], facts["kind"], facts["format"]) == ("llama", "decoder", "safetensors")
    assert facts["vocab_size"] == "384"
    done = vivace("info", "--model", "org/never-pulled")
    assert done.code == 1
    assert "vivace pull org/never-pulled" in done.err


def test_a_model_is_described_with_what_was_measured_of_it(
    vivace: Vivace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIVACE_CACHE", str(tmp_path))
    words = ("--kernels", "ref", "--threads", "1", "--kv-bytes", "16M", "--kv-format", "bf16")
    done = vivace("run", TINY, "Hello", "--max-tokens", "1", *words)
    assert done.code == 0 and "kv_format=bf16: KL divergence" in done.err
    again = vivace("run", TINY, "Hello", "--max-tokens", "1", *words)
    assert again.code == 0 and "KL divergence" not in again.err
    facts = json.loads(vivace("info", "--model", TINY, "--json").out)["model"]
    assert "top-1 agreement" in facts["with kv_format=bf16"]
    refused = vivace("run", TINY, "Hello", *words, "--kl-limit", "1e-9")
    assert refused.code == 1 and "kl_limit allows a divergence of 1e-09" in refused.err
