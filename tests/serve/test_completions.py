"""POST /v1/completions, driven by the official client over a real server."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.serve.conftest import CHAT
from tests.serve.server import TINY
from vivace.api.text import load_text

TOKENIZER = load_text(TINY).tokenizer
PROMPT = "One day the bear found"


def _complete(client: openai.OpenAI, **options: object) -> openai.types.Completion:
    return client.completions.create(**{"model": CHAT, "prompt": PROMPT, "max_tokens": 12, "temperature": 0, **options})  # type: ignore[call-overload, no-any-return]


def test_greedy_answers_are_equal_and_counted(client: openai.OpenAI) -> None:
    first, second = _complete(client), _complete(client)
    assert first.choices[0].text == second.choices[0].text
    assert first.choices[0].finish_reason == "length"
    assert first.object == "text_completion" and first.model == CHAT
    assert first.usage is not None
    assert first.usage.completion_tokens == 12
    assert first.usage.total_tokens == first.usage.prompt_tokens + 12


@pytest.mark.parametrize("stops", [None, "ook", ["ok.", " K"], ["never seen"], ["a", "b", "zzz"]])
def test_streamed_text_equals_whole_text(client: openai.OpenAI, stops: object) -> None:
    """Cases 5, 7: with and without stop strings."""
    whole = _complete(client, stop=stops, max_tokens=30)
    chunks = list(_complete(client, stop=stops, max_tokens=30, stream=True))  # type: ignore[call-overload]
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert all(chunk.choices[0].text for chunk in chunks[:-1]), "an empty delta"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)


def test_stop_string_within_tokens_never_reaches_the_client(client: openai.OpenAI) -> None:
    """Case 4: the stop string begins and ends within tokens."""
    text = _complete(client, max_tokens=30).choices[0].text
    for start in range(0, len(text) - 4, 3):
        stop = text[start : start + 4]
        found = _complete(client, max_tokens=30, stop=stop)
        assert found.choices[0].text == text[: text.index(stop)]
        assert found.choices[0].finish_reason == "stop"


def test_a_stop_ends_the_job_and_is_counted_up_to_its_token(client: openai.OpenAI) -> None:
    plain = _complete(client, max_tokens=30, logprobs=0)
    assert plain.choices[0].logprobs is not None and plain.choices[0].logprobs.tokens is not None
    tokens = plain.choices[0].logprobs.tokens
    stopped = _complete(client, max_tokens=30, stop="".join(tokens[4:6]))
    assert stopped.usage is not None
    assert stopped.usage.completion_tokens == 6


def test_same_seed_gives_the_same_answer_beside_unseeded_neighbours(client: openai.OpenAI) -> None:
    """Case 22."""
    seeded = [_complete(client, temperature=1.5, seed=7, max_tokens=20).choices[0].text for _ in range(2)]
    mixed = _complete(client, temperature=1.5, seed=7, max_tokens=20, n=3)
    assert seeded[0] == seeded[1] == mixed.choices[0].text
    others = {choice.text for choice in mixed.choices}
    assert len(others) == 3, "choices of one request must differ: their seeds do"


def test_temperature_zero_gives_equal_choices(client: openai.OpenAI) -> None:
    """Case 30."""
    found = _complete(client, n=2)
    assert found.choices[0].text == found.choices[1].text
    assert [choice.index for choice in found.choices] == [0, 1]


def test_echo_with_logprobs_is_aligned(client: openai.OpenAI) -> None:
    """Case 13: joined tokens equal the text, offsets are cumulative, the first prompt token has no score."""
    choice = _complete(client, echo=True, logprobs=2).choices[0]
    scores = choice.logprobs
    assert scores is not None and scores.tokens and scores.token_logprobs and scores.top_logprobs and scores.text_offset
    assert "".join(scores.tokens) == choice.text
    assert choice.text.startswith(PROMPT)
    assert scores.text_offset == [len("".join(scores.tokens[:i])) for i in range(len(scores.tokens))]
    assert scores.token_logprobs[0] is None and scores.top_logprobs[0] is None
    assert all(score is not None and score <= 0 for score in scores.token_logprobs[1:])
    assert all(len(top) >= 2 for top in scores.top_logprobs[1:])


@pytest.mark.parametrize("stop", ["ook", [f"{letter}\x01" for letter in "aeinorstdly."]])
def test_streamed_logprobs_equal_whole_ones(client: openai.OpenAI, stop: str | list[str]) -> None:
    """A stop string may hold back a part of a token, whose text is then ahead of it."""
    options: dict[str, Any] = {"echo": True, "logprobs": 1, "stop": stop, "max_tokens": 30}
    whole = _complete(client, **options).choices[0].logprobs
    tokens: list[str] = []
    offsets: list[int] = []
    scores: list[float | None] = []
    for chunk in _complete(client, **options, stream=True):  # type: ignore[call-overload]
        part = chunk.choices[0].logprobs
        if part is not None:
            tokens += part.tokens
            offsets += part.text_offset
            scores += part.token_logprobs
    assert whole is not None
    assert (tokens, offsets, scores) == (whole.tokens, whole.text_offset, whole.token_logprobs)


def test_scoring_without_generating_returns_the_prompt_alone(client: openai.OpenAI) -> None:
    found = _complete(client, echo=True, logprobs=1, max_tokens=0)
    assert found.choices[0].text == PROMPT
    assert found.usage is not None and found.usage.completion_tokens == 0


def test_prompt_and_answer_scored_in_one_prefill_agree_with_decoding(client: openai.OpenAI) -> None:
    """Case 19: what was drawn step by step is the most likely token of the prefill, with the same score to the bit."""
    no_end = {str(token_id): -100 for token_id in TOKENIZER.special_ids}
    drawn = _complete(client, logprobs=1, max_tokens=327, logit_bias=no_end).choices[0].logprobs
    assert drawn is not None and drawn.tokens is not None
    ids = [*TOKENIZER.encode_prompt(PROMPT), *map(_id, drawn.tokens)]
    scored = _complete(client, prompt=ids, echo=True, logprobs=5, max_tokens=0).choices[0].logprobs
    assert scored is not None and scored.token_logprobs is not None and scored.top_logprobs is not None
    assert scored.token_logprobs[-327:] == drawn.token_logprobs
    ends = {TOKENIZER.token_bytes(token_id).decode() for token_id in TOKENIZER.special_ids}
    for top, score in zip(scored.top_logprobs[-327:], scored.token_logprobs[-327:], strict=True):
        assert max(value for text, value in top.items() if text not in ends) == score


def test_warm_cache_gives_the_same_logprobs(client: openai.OpenAI) -> None:
    """Case 41: fresh prefix against cached prefix, to the bit."""
    prompt = PROMPT + " a long and winding story that fills some pages of the cache" * 2
    cold = _complete(client, prompt=prompt, max_tokens=1, logprobs=5)
    warm = _complete(client, prompt=prompt, max_tokens=1, logprobs=5)
    assert warm.usage is not None and warm.usage.prompt_tokens_details is not None
    assert (warm.usage.prompt_tokens_details.cached_tokens or 0) > 0
    assert cold.choices[0].logprobs is not None and warm.choices[0].logprobs is not None
    assert cold.choices[0].logprobs == warm.choices[0].logprobs


def test_several_prompts_come_back_in_order(client: openai.OpenAI) -> None:
    prompts = ["One day", "The cat", "One day the bear found"]
    together = _complete(client, prompt=prompts, n=2, max_tokens=6)
    assert [choice.index for choice in together.choices] == list(range(6))
    for place, prompt in enumerate(prompts):
        alone = _complete(client, prompt=prompt, max_tokens=6).choices[0].text
        assert together.choices[2 * place].text == together.choices[2 * place + 1].text == alone


def test_token_ids_are_a_prompt_and_never_come_back(client: openai.OpenAI) -> None:
    """Case 1: the first delta holds generated text only."""
    ids = TOKENIZER.encode_prompt(PROMPT)
    by_text, by_ids = _complete(client), _complete(client, prompt=ids)
    assert by_text.choices[0].text == by_ids.choices[0].text
    assert by_ids.usage is not None and by_ids.usage.prompt_tokens == len(ids)


def test_prompt_that_ends_within_a_character_is_not_repeated(client: openai.OpenAI) -> None:
    """Case 1: the ids of the prompt end after the first byte of a character of three."""
    (euro, *_) = TOKENIZER.encode("\u20ac")
    assert len(TOKENIZER.token_bytes(euro)) < 3
    prompt = [*TOKENIZER.encode_prompt(PROMPT), euro]
    whole = _complete(client, prompt=prompt, logprobs=0).choices[0]
    chunks = list(_complete(client, prompt=prompt, stream=True))  # type: ignore[call-overload]
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.text
    assert "bear" not in chunks[0].choices[0].text


def test_stop_token_ids_end_the_answer(client: openai.OpenAI) -> None:
    plain = _complete(client, logprobs=0).choices[0]
    assert plain.logprobs is not None and plain.logprobs.tokens is not None
    texts = plain.logprobs.tokens
    place = next(index for index in range(2, len(texts)) if texts[index] not in texts[:index])
    found = _complete(client, extra_body={"stop_token_ids": [_id(texts[place])]}).choices[0]
    assert (found.finish_reason, found.text) == ("stop", "".join(texts[:place]))


def test_logit_bias_forbids_a_token(client: openai.OpenAI) -> None:
    plain = _complete(client, logprobs=0).choices[0]
    assert plain.logprobs is not None and plain.logprobs.tokens is not None
    found = _complete(client, logit_bias={str(_id(plain.logprobs.tokens[0])): -100}, logprobs=0).choices[0]
    assert found.logprobs is not None and found.logprobs.tokens is not None
    assert found.logprobs.tokens[0] != plain.logprobs.tokens[0]


def test_stream_usage_equals_whole_usage(client: openai.OpenAI) -> None:
    """Case 78: empty choices in the last chunk, all choices counted."""
    whole = _complete(client, n=3)
    chunks = list(_complete(client, n=3, stream=True, stream_options={"include_usage": True}))  # type: ignore[call-overload]
    assert chunks[-1].choices == []
    assert whole.usage is not None and chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 36
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])


def _id(text: str) -> int:
    """The id of the one token that reads `text`."""
    (found,) = [
        token_id
        for token_id in range(TOKENIZER.vocab_size)
        if TOKENIZER.token_bytes(token_id) == text.encode() and token_id not in TOKENIZER.special_ids
    ]
    return found


def test_speculation_changes_no_text_and_is_told_in_usage(client: openai.OpenAI) -> None:
    options = {"prompt": "One day the cat found a red ball. One day the cat", "max_tokens": 40}
    plain = _complete(client, **options)
    assert plain.usage is not None and plain.usage.completion_tokens_details is None
    for choice in ("ngram", {"ngram": {"k": 12, "min_n": 1}}):
        drafted = _complete(client, **options, extra_body={"speculation": choice})
        assert drafted.choices[0].text == plain.choices[0].text
        assert drafted.usage is not None and drafted.usage.completion_tokens == plain.usage.completion_tokens
        details = drafted.usage.completion_tokens_details
        assert details is not None
        assert (details.accepted_prediction_tokens or 0) + (details.rejected_prediction_tokens or 0) > 0
    with pytest.raises(openai.BadRequestError, match="ngram"):
        _complete(client, extra_body={"speculation": "ngrams"})
    with pytest.raises(openai.BadRequestError, match="k is 65"):
        _complete(client, extra_body={"speculation": {"ngram": {"k": 65}}})
