"""The command line in this process: torch is loaded once for all tests of the folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.serve.encoder import make_tiny_encoder
from vivace.cli.main import make_app

TINY = Path(__file__).resolve().parents[1] / "assets" / "tiny-llama"
FAST = (
    "--kernels",
    "ref",
    "--threads",
    "1",
    "--kv-bytes",
    "16M",
)  # small models: threads and pages cost more than they give


@dataclass(frozen=True)
class Done:
    """What a command left: its exit status and what it printed."""

    code: int
    out: str
    err: str


Vivace = Callable[..., Done]


@pytest.fixture
def vivace() -> Vivace:
    """Run `vivace WORDS...`; `stdin` is what is piped into it."""

    def run(*words: str | Path, stdin: str = "") -> Done:
        result = CliRunner().invoke(make_app(), [str(word) for word in words], input=stdin)
        return Done(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random sentence encoder of 32 dimensions that may be shortened to 8 or 16."""
    return make_tiny_encoder(tmp_path_factory.mktemp("models") / "tiny-bert")
