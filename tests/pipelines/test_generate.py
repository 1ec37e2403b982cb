"""The generate pipeline under the real scheduler: right tokens, whatever batch, chunks, cache or memory."""

from dataclasses import replace

import pytest
import torch

from tests.pipelines.engine import CONFIG, TINY, Engine, alone, plain_greedy, plain_logits, prompts, tiny
from vivace.engine.batch import Batch, Span
from vivace.pipelines import generate
from vivace.pipelines.logprobs import token_logprob
from vivace.pipelines.requests import GenerateRequest

SAMPLED = {"temperature": {"value": 0.9}, "top_p": {"value": 0.95}, "frequency_penalty": {"value": 0.3}}


def _requests(name: str, **fields) -> list[GenerateRequest]:
    return [GenerateRequest(ids, max_tokens=12, logprobs=2, **fields) for ids in prompts(name)]


@pytest.mark.parametrize("name", TINY)
def test_greedy_in_a_batch_equals_a_plain_loop_without_cache(name: str) -> None:
    results = Engine(tiny(name)).run(*_requests(name))
    for prompt, result in zip(prompts(name), results, strict=True):
        assert result.ids == plain_greedy(tiny(name), prompt, 12)
        assert result.last.finished == "length"
        assert result.last.usage.generated == 12


@pytest.mark.parametrize("name", TINY)
def test_logprobs_are_those_of_a_plain_forward_pass_bit_for_bit(name: str) -> None:
    results = Engine(tiny(name)).run(*_requests(name, prompt_logprobs=3))
    for prompt, result in zip(prompts(name), results, strict=True):
        scores = plain_logits(tiny(name), [*prompt, *result.ids])
        ids = [*prompt, *result.ids]
        expected = [token_logprob(scores[place - 1], ids[place], 3) for place in range(1, len(prompt))]
        assert result.prompt_logprobs == expected
        expected = [token_logprob(scores[place - 1], ids[place], 2) for place in range(len(prompt), len(ids))]
        assert result.logprobs == expected


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize(("page_size", "step_budget"), [(1, 7), (3, 5), (16, 64), (4, 1)])
def test_pages_and_chunks_change_nothing(name: str, page_size: int, step_budget: int) -> None:
    requests = _requests(name, sampling=SAMPLED, seed=11, prompt_logprobs=0)
    engine = Engine(tiny(name), replace(CONFIG, page_size=page_size, step_budget=step_budget))
    for request, result in zip(requests, engine.run(*requests), strict=True):
        assert result.same() == alone(tiny(name), request).same()


@pytest.mark.parametrize("name", TINY)
def test_a_warm_prefix_cache_changes_nothing_but_usage(name: str) -> None:
    engine, requests = Engine(tiny(name)), _requests(name, sampling=SAMPLED, seed=3)
    cold, warm = engine.run(*requests), engine.run(*requests)
    assert [result.same() for result in warm] == [result.same() for result in cold]
    assert sum(result.last.usage.cached for result in warm) > 50
    assert all(result.last.usage.cached <= len(ids) for ids, result in zip(prompts(name), warm, strict=True))


@pytest.mark.parametrize("prefix_cache", [False, True])
@pytest.mark.parametrize("name", TINY)
def test_preemption_changes_neither_ids_nor_logprobs_nor_usage(name: str, prefix_cache: bool) -> None:
    model = tiny(name)
    page_bytes = sum(group.unit_bytes for group in model.page_groups(2)) * 2
    config = replace(CONFIG, page_size=2, kv_bytes=60 * page_bytes, prefix_cache=prefix_cache)
    engine = Engine(model, config)
    requests = [replace(request, max_tokens=40) for request in _requests(name, prompt_logprobs=1)]
    results = engine.run(*requests)
    assert engine.loop.snapshot()["preemptions"] >= 3
    for request, result in zip(requests, results, strict=True):
        reference = alone(model, request)
        assert result.same() == reference.same()
        assert result.last.usage == reference.last.usage


def test_prompt_logprobs_are_the_same_with_a_warm_cache_and_never_from_it() -> None:
    name = TINY[0]
    engine = Engine(tiny(name))
    engine.run(*_requests(name))
    requests = _requests(name, prompt_logprobs=2)
    for request, result in zip(requests, engine.run(*requests), strict=True):
        assert len(result.prompt_logprobs) == len(request.ids) - 1
        assert result.last.usage.cached == 0
        assert result.same() == alone(tiny(name), request).same()


def test_scoring_an_answer_in_one_go_gives_the_logprobs_of_its_generation() -> None:
    name = TINY[0]
    prompt = prompts(name)[0]
    (answer,) = Engine(tiny(name)).run(GenerateRequest(prompt, max_tokens=60, logprobs=1))
    scored = Engine(tiny(name)).run(GenerateRequest((*prompt, *answer.ids), max_tokens=1, prompt_logprobs=1))[0]
    assert scored.prompt_logprobs[len(prompt) - 1 :] == answer.logprobs
    assert len(scored.ids) == 1


def test_a_seeded_answer_does_not_depend_on_unseeded_neighbours() -> None:
    name = TINY[0]
    request = GenerateRequest(prompts(name)[0], max_tokens=20, sampling={"temperature": {"value": 1.5}}, seed=77)
    others = [GenerateRequest(ids, max_tokens=20, sampling={"temperature": {"value": 1.0}}) for ids in prompts(name)]
    results = Engine(tiny(name)).run(*others[:3], request, *others[3:])
    assert results[3].same() == alone(tiny(name), request).same()
    assert results[3].ids != alone(tiny(name), replace(request, seed=78)).ids


def test_a_step_that_is_launched_again_in_parts_finds_the_same() -> None:
    name = TINY[1]
    engine = Engine(tiny(name))
    for request in _requests(name, sampling=SAMPLED, seed=5, prompt_logprobs=1):
        engine.submit(request)
    for _ in range(12):
        with_all = engine.loop.scheduler.plan()
        assert with_all is not None
        outcomes = list(engine.pipeline.launch(with_all).outcomes())
        parts: list = []
        for spans in (with_all.spans[:2], with_all.spans[2:]):
            if spans:
                parts += engine.pipeline.launch(Batch("tiny", spans, with_all.copies, 0)).outcomes()
        assert parts == outcomes
        assert list(engine.pipeline.launch(with_all).outcomes()) == outcomes
        for event in engine.loop.scheduler.accept(with_all, outcomes):
            event.job.sink(event)


def test_slices_of_the_scores_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    name = TINY[0]
    requests = _requests(name, prompt_logprobs=1)
    expected = [result.same() for result in Engine(tiny(name)).run(*requests)]
    monkeypatch.setattr(generate, "SLICE_SCORES", 2 * tiny(name).vocab_size)
    assert [result.same() for result in Engine(tiny(name)).run(*requests)] == expected


def test_tenants_do_not_share_prefixes() -> None:
    name = TINY[0]
    engine, ids = Engine(tiny(name)), prompts(name)[3]
    cached = []
    for tenant in ("a", "b", "b"):
        (result,) = engine.run(GenerateRequest(ids, max_tokens=1, tenant=tenant))
        cached.append(result.last.usage.cached)
    assert cached[:2] == [0, 0]
    assert cached[2] > 0


class _Poisoned:
    """A decoder whose scores are no numbers after one id."""

    def __init__(self, name: str, bad: int) -> None:
        self._model, self._bad = tiny(name), bad

    def __getattr__(self, name: str):
        return getattr(self._model, name)

    def forward(self, ids: torch.Tensor, ctx) -> torch.Tensor:
        hidden = self._model.forward(ids, ctx)
        hidden[ids == self._bad] = torch.nan
        return hidden


def test_scores_that_are_no_numbers_fail_their_own_request_only() -> None:
    name = TINY[0]
    requests = _requests(name)
    bad = requests[2].ids[-1]
    requests = [request for request in requests if bad not in request.ids or request is requests[2]]
    results = Engine(_Poisoned(name, bad)).run(*requests)
    for request, result in zip(requests, results, strict=True):
        if request.ids[-1] == bad:
            assert result.last.finished == "error"
            code, message, *_ = result.last.error
            assert code == "step_failed"
            assert "scores" in message
        elif bad not in result.ids:
            assert result.same() == alone(tiny(name), request).same()
    assert sum(result.last.finished == "length" for result in results) >= 3


def test_a_cancelled_request_gets_a_last_reply() -> None:
    name = TINY[0]
    engine = Engine(tiny(name))
    result = engine.submit(GenerateRequest(prompts(name)[0], max_tokens=50))
    engine.loop.scheduler.cancel(1)
    engine.run()
    assert result.last.finished == "cancelled"
    assert result.last.error is None


def test_a_span_of_a_finished_chunk_asks_for_nothing_more() -> None:
    name = TINY[0]
    engine = Engine(tiny(name))
    job = engine.pipeline.make_job(GenerateRequest(prompts(name)[3], max_tokens=4), 9, lambda reply: None)
    engine.loop.submit(job)
    batch = engine.loop.scheduler.plan()
    assert batch is not None
    assert batch.spans == (Span(job, 0, CONFIG.step_budget),)
    (outcome,) = engine.pipeline.launch(batch).outcomes()
    assert (outcome.goal, outcome.keys, outcome.finished) == (job.goal, b"", None)
