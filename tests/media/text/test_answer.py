"""The text of an answer and its tokens: joined, the tokens are the text, for any ids, stop strings and cuts."""

from __future__ import annotations

import random

import pytest

from tests.media.text.small_tokenizers import save_folder
from vivace.media.text.answer import Answer, TextToken
from vivace.media.text.hf import load_hf_tokenizer
from vivace.media.text.tokenizer import Tokenizer

EMOJI = "日本語 👩‍👧 é ß \n\n"


@pytest.fixture(scope="module", params=["byte_level", "gemma_like"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_hf_tokenizer(save_folder(tmp_path_factory.mktemp("tokenizer"), request.param))


def _read(answer: Answer, ids: list[int], cuts: list[int]) -> tuple[str, list[TextToken]]:
    """The joined pieces; a piece before the end has text if it has tokens."""
    text, tokens = "", []
    for start, stop in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        if answer.is_stopped:
            break
        piece = answer.feed(ids[start:stop])
        assert piece.text or not piece.tokens or answer.is_stopped
        text, tokens = text + piece.text, tokens + list(piece.tokens)
    if not answer.is_stopped:
        piece = answer.finish()
        text, tokens = text + piece.text, tokens + list(piece.tokens)
    return text, tokens


def _draw(choose: random.Random, tokenizer: Tokenizer) -> tuple[list[int], list[str], list[int]]:
    """Ids, often of pieces of characters and of control tokens; stop strings, often of their text; cuts."""
    known = [*tokenizer.encode(EMOJI), *tokenizer.special_ids]
    ids = [choose.choice(known) if choose.random() < 0.5 else choose.randrange(tokenizer.vocab_size) for _ in range(10)]
    text = tokenizer.decode(ids)
    starts = [choose.randrange(len(text)) for _ in range(choose.randrange(3))] if text else []
    stops = [text[start : start + choose.randrange(1, 5)] for start in starts]
    return ids, [*stops, "never 日"], sorted(choose.sample(range(1, 10), choose.randrange(9)))


def test_joined_tokens_are_the_text_up_to_the_first_stop(tokenizer: Tokenizer) -> None:
    choose = random.Random(7)
    unfinished = 0
    for _ in range(1000):
        ids, stops, cuts = _draw(choose, tokenizer)
        whole = tokenizer.decode(ids)
        unfinished += whole.endswith("\ufffd")
        ends = [(whole.find(stop) + len(stop), len(stop)) for stop in stops if stop in whole]
        end = min(ends)[0] if ends else 0
        expected = whole[: end - max(length for at, length in ends if at == end)] if ends else whole
        text, tokens = _read(Answer(tokenizer, (), stops), ids, cuts)
        assert text == expected
        assert "".join(token.text for token in tokens) == text
        assert [token.id for token in tokens] == ids[: len(tokens)]
        assert _read(Answer(tokenizer, (), stops), ids, []) == (text, tokens), "whatever the cuts"
    assert unfinished > 50
