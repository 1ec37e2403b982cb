"""POST /v1/embeddings, driven by the official client over a real server."""

from __future__ import annotations

import base64

import numpy as np
import openai
import pytest

from tests.serve.conftest import CHAT, EMBED
from tests.serve.server import Server
from vivace.serve.openai_schemas import MAX_INPUTS

TEXTS = ["the cat sat on the mat", "a dog ran home", "the sun is bright", "moon"]


def _vectors(client: openai.OpenAI, inputs: object, **options: object) -> np.ndarray:
    found = client.embeddings.create(**{"model": EMBED, "input": inputs, **options})  # type: ignore[call-overload]
    assert [item.index for item in found.data] == list(range(len(found.data)))
    return np.array([item.embedding for item in found.data], dtype=np.float32)


def test_floats_and_base64_hold_the_same_numbers(client: openai.OpenAI, server: Server) -> None:
    """Case 77: base64 is little-endian float32, and the official client asks for it by default."""
    by_default = _vectors(client, TEXTS)
    as_floats = _vectors(client, TEXTS, encoding_format="float")
    raw = server.post("/v1/embeddings", {"model": EMBED, "input": TEXTS[0], "encoding_format": "base64"}).json()
    decoded = np.frombuffer(base64.b64decode(raw["data"][0]["embedding"]), dtype="<f4")
    assert by_default.shape == (4, 32)
    assert np.array_equal(by_default, as_floats)
    assert np.array_equal(decoded, as_floats[0])


def test_batch_equals_single_texts(client: openai.OpenAI) -> None:
    together = _vectors(client, TEXTS)
    alone = np.concatenate([_vectors(client, text) for text in TEXTS])
    assert np.array_equal(together, alone)


def test_token_ids_equal_the_text_they_stand_for(client: openai.OpenAI, server: Server) -> None:
    ids = [server.post("/tokenize", {"model": EMBED, "prompt": text}).json()["tokens"] for text in TEXTS[:2]]
    assert np.array_equal(_vectors(client, ids), _vectors(client, TEXTS[:2]))
    assert np.array_equal(_vectors(client, ids[0]), _vectors(client, TEXTS[0]))


def test_dimensions_cut_then_normalise(client: openai.OpenAI) -> None:
    """Case 75 on a model trained for it."""
    whole, cut = _vectors(client, TEXTS), _vectors(client, TEXTS, dimensions=8)
    expected = whole[:, :8] / np.linalg.norm(whole[:, :8], axis=1, keepdims=True)
    # One division more in float32.
    assert np.allclose(cut, expected, atol=1e-6)


@pytest.mark.parametrize(("dimensions", "words"), [(7, "trained for 8, 16, 32"), (33, "from 1 to 32")])
def test_other_dimensions_are_refused_by_name(client: openai.OpenAI, dimensions: int, words: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        _vectors(client, TEXTS, dimensions=dimensions)
    assert caught.value.param == "dimensions"
    assert words in str(caught.value)


def test_usage_counts_all_tokens(client: openai.OpenAI) -> None:
    found = client.embeddings.create(model=EMBED, input=["the cat", "a dog ran home"])
    assert found.usage.prompt_tokens == found.usage.total_tokens == (2 + 2) + (4 + 2)


def test_too_long_an_input_is_refused_with_numbers_or_cut_if_allowed(client: openai.OpenAI) -> None:
    long = " ".join(["cat"] * 100)
    with pytest.raises(openai.BadRequestError) as caught:
        _vectors(client, long)
    assert caught.value.code == "context_length_exceeded"
    assert "102" in str(caught.value) and "24" in str(caught.value)
    cut = _vectors(client, long, extra_body={"truncate": True})
    assert np.array_equal(cut, _vectors(client, " ".join(["cat"] * 22)))


def test_the_stated_number_of_inputs_fits_an_idle_server(client: openai.OpenAI) -> None:
    """More than may wait in the engine's queue: a request must not be refused for its own length."""
    reply = client.embeddings.create(model=EMBED, input=["cat"] * MAX_INPUTS)
    assert len(reply.data) == MAX_INPUTS and reply.usage.prompt_tokens == 3 * MAX_INPUTS
    texts = client.completions.create(model=CHAT, prompt=["One day"] * 16, n=128, max_tokens=1, temperature=0)
    assert len({choice.text for choice in texts.choices}) == 1 and len(texts.choices) == MAX_INPUTS
