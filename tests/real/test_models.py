"""Real weights: scores and hidden states equal the peer library's, and published greedy tokens come out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertModel

from tests.oracle import peers
from tests.oracle.compare import error
from tests.oracle.driver import Driver, encode
from vivace.kernels.select import BoundOps, resolve
from vivace.models.load import load_model

pytestmark = pytest.mark.real

ROWS, CHUNK = 160, 47
SAME = 2e-5  # of the largest score: float32 sums in another order, through up to 30 layers


@pytest.fixture(scope="module")
def ops() -> BoundOps:
    return resolve(choice="ref")


@pytest.mark.parametrize(
    ("name", "make_peer"), [("smollm2", peers.smollm2), ("gemma3-270m", peers.gemma3_270m)], ids=["smollm2", "gemma3"]
)
def test_prefill_scores_equal_the_peers(
    name: str, make_peer: Callable[[Path], Any], real_model: Callable[[str], Path], ops: BoundOps
) -> None:
    path = real_model(name)
    model: Any = load_model(path, ops)
    # Any ids will do for a comparison of scores; rare ones exercise the whole embedding.
    ids = torch.randint(5, model.vocab_size, (ROWS,), generator=torch.Generator().manual_seed(2)).tolist()
    driver = Driver(model, ops, page_size=16)
    scores = driver.prefill(driver.add(ROWS), ids, CHUNK)
    theirs = peers.peer_scores(make_peer(path), ids)
    assert error(scores, theirs) < SAME
    assert torch.equal(scores.argmax(-1), theirs.argmax(-1))


def test_minilm_hidden_states_equal_the_peers(real_model: Callable[[str], Path], ops: BoundOps) -> None:
    folder = real_model("minilm")
    model: Any = load_model(folder, ops)
    peer = BertModel.from_pretrained(folder).eval()
    generator = torch.Generator().manual_seed(2)
    texts = [torch.randint(100, 30000, (length,), generator=generator).tolist() for length in (3, 64, 17)]
    ours = encode(model, ops, texts, [[0] * len(text) for text in texts])
    for text, hidden in zip(texts, ours, strict=True):
        with torch.no_grad():
            assert error(hidden, peer(input_ids=torch.tensor([text])).last_hidden_state[0]) < SAME


@pytest.mark.parametrize("choice", ["ref", "rows", "auto"])
def test_stories260k_gives_its_published_greedy_text(choice: str, test_data: Path) -> None:
    folder = test_data / "models"
    ops = resolve(choice=choice)
    driver = Driver(load_model(folder / "stories260K.bin", ops), ops)
    number = driver.add(201)
    tokens = driver.greedy(number, driver.step({number: [1]})[number][-1], 200)
    text = b"".join(llama2c_pieces(folder / "tok512.bin")[token] for token in tokens)
    assert text.decode().strip() == (folder / "stories260K_greedy200.txt").read_text().strip()


def llama2c_pieces(path: Path) -> list[bytes]:
    """The pieces of a llama2.c tokenizer file: after the longest length, (score, length, bytes) each."""
    data, at, pieces = path.read_bytes(), 4, []
    while at < len(data):
        length = int.from_bytes(data[at + 4 : at + 8], "little")
        piece = data[at + 8 : at + 8 + length]
        is_byte = piece.startswith(b"<0x") and piece.endswith(b">")
        pieces.append(bytes([int(piece[3:5], 16)]) if is_byte else piece)
        at += 8 + length
    return pieces
