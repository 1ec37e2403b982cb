"""One tiny case of every verb, from the shell, from Python and over HTTP: the first thing to run after a change."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import vivace
from tests.serve.encoder import make_tiny_encoder
from tests.serve.server import serving
from vivace.cli.main import VERBS, make_app

ASSETS = Path(__file__).parent / "assets"
LLAMA, GEMMA = ASSETS / "tiny-llama", ASSETS / "tiny-gemma3"
QUESTION, ANSWER = "What is the capital of France?", "The capital of France is Paris."
SMALL = vivace.EngineConfig(threads=1, kv_bytes=16 << 20)
ENGINE = ("--threads", "1", "--kv-bytes", "16M")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_encoder(tmp_path_factory.mktemp("models") / "tiny-bert")


def shell(*words: str | Path, stdin: str = "") -> str:
    """What `vivace WORDS...` prints on stdout."""
    result = CliRunner().invoke(make_app(), [str(word) for word in words], input=stdin)
    assert result.exit_code == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("model", [LLAMA, GEMMA], ids=lambda path: path.name)
@pytest.mark.parametrize("kernels", ["auto", "ref", "rows"])
def test_run(model: Path, kernels: str) -> None:
    assert shell("run", model, QUESTION, "--kernels", kernels, *ENGINE) == f"{ANSWER}\n"


def test_embed(encoder: Path) -> None:
    assert len(json.loads(shell("embed", encoder, "the cat sat", *ENGINE))["vector"]) == 32


def test_tokenize() -> None:
    assert shell("tokenize", LLAMA, shell("tokenize", LLAMA, QUESTION, "--ids"), "--decode") == f"{QUESTION}\n"


def test_bench() -> None:
    work = ("--prefill", "16", "--streams", "2", "--context", "8", "--tokens", "3", "--running", "0", "--repeats", "1")
    assert "decode 2" in shell("bench", "engine", LLAMA, *work, *ENGINE)


def test_info() -> None:
    assert f"version  {vivace.__version__}" in shell("info", "--threads", "1")


def test_pull_and_models(tmp_path: Path) -> None:
    assert "sha256" in shell("pull", LLAMA)
    assert "smollm2" in shell("models", "--cache-dir", tmp_path)


def test_serve() -> None:
    with serving([LLAMA]) as server:
        message = {"role": "user", "content": QUESTION}
        reply = server.client().chat.completions.create(model="tiny-llama", messages=[message], temperature=0)
    assert reply.choices[0].message.content == ANSWER


def test_python() -> None:
    with vivace.load(str(LLAMA), config=SMALL) as model:
        assert model.chat(QUESTION).text == ANSWER
        assert "".join(delta.text for delta in model.chat_stream(QUESTION)) == ANSWER
        counts = model.generate(["Count: one,", "Count: two,"], max_tokens=2)
        assert [count.text for count in counts] == [" two", " thre"]
        assert asyncio.run(model.achat(QUESTION)).text == ANSWER


def test_every_verb_has_a_case_here() -> None:
    cases = {word for name in globals() if name.startswith("test_") for word in name.split("_")}
    assert {verb.__name__ for verb in VERBS} <= cases
