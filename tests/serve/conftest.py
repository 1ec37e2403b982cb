"""One server for all tests of this folder: a tiny decoder and a tiny encoder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.serve.encoder import make_tiny_encoder
from tests.serve.server import TINY, Server, serving

CHAT = "tiny-llama"
EMBED = "tiny-bert"


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random BERT with three words a piece, as a sentence-transformers folder."""
    return make_tiny_encoder(tmp_path_factory.mktemp("models") / EMBED)


@pytest.fixture(scope="session")
def server(tiny_encoder: Path) -> Iterator[Server]:
    # "rows" holds the determinism contract in full, so that tests may compare to the bit.
    with serving([TINY, tiny_encoder], engine={"kernels": "rows"}) as running:
        yield running


@pytest.fixture(scope="session")
def client(server: Server) -> openai.OpenAI:
    return server.client()
