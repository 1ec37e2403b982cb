"""Drafts under the real scheduler: answers as without them, several tokens a reply, counts, refusals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.pipelines.engine import CONFIG, TINY, Engine, Result, alone, prompts, tiny
from vivace.engine.batch import Batch
from vivace.errors import InvalidRequest, UnknownName
from vivace.pipelines.requests import GenerateRequest, Reply
from vivace.registry import Registry
from vivace.techniques import index
from vivace.techniques.speculation.base import DraftTree

NAME = TINY[0]
PROMPT = prompts(NAME)[3]
NGRAM = {"ngram": {"k": 6, "min_n": 1}}
SAMPLED = {"temperature": {"value": 0.9}, "top_p": {"value": 0.95}, "frequency_penalty": {"value": 0.3}}


class Guesses:
    """A drafter that goes on as a given text does, as far as `room` and `k` allow."""

    def __init__(self, text: Sequence[int], k: int = 8) -> None:
        self.text, self.k = tuple(text), k

    def propose(self, history: Any, room: int) -> DraftTree:
        return DraftTree.chain(self.text[len(history) : len(history) + min(self.k, room)])


def _run(
    engine: Engine, request: GenerateRequest, drafter: Any = None, on_reply: Callable[[Reply], None] = id
) -> Result:  # type: ignore[assignment]
    """One request with a drafter of our own."""
    result = Result()

    def take(reply: Reply) -> None:
        on_reply(reply)
        result.take(reply)

    job = engine.pipeline.make_job(request, 1, take)
    if drafter is not None:
        job.payload.drafter = drafter
    engine.loop.submit(job)
    engine.loop.run_until_idle()
    engine.loop.scheduler.check_idle()
    return result


@pytest.mark.parametrize("sampling", [{}, SAMPLED])
@pytest.mark.parametrize("name", TINY)
def test_ngram_drafts_in_a_batch_change_nothing_and_a_right_guess_saves_a_step(name: str, sampling: dict) -> None:
    plain = [GenerateRequest(ids, max_tokens=40, logprobs=2, sampling=sampling, seed=4) for ids in prompts(name)]
    off, on = (Engine(tiny(name), replace(CONFIG, step_budget=256)) for _ in range(2))
    expected = off.run(*plain)
    found = on.run(*[replace(request, speculation=NGRAM) for request in plain])
    assert [result.same() for result in found] == [result.same() for result in expected]
    saved = sum(result.last.usage.accepted for result in found)
    turns = [engine.loop.snapshot()["step_jobs"]["total"] for engine in (off, on)]
    assert turns[0] - turns[1] == saved > 0


def test_a_right_draft_brings_its_tokens_and_one_more_in_one_reply() -> None:
    request = GenerateRequest(PROMPT, max_tokens=20, logprobs=1)
    expected = alone(tiny(NAME), request)
    replies: list[Reply] = []
    found = _run(Engine(tiny(NAME)), request, Guesses([*PROMPT, *expected.ids], k=4), replies.append)
    assert found.same() == expected.same()
    assert [len(reply.output.ids) for reply in replies] == [1, 5, 5, 5, 4]
    assert all(len(reply.output.logprobs) == len(reply.output.ids) for reply in replies)
    assert (found.last.usage.accepted, found.last.usage.rejected) == (15, 0)


def test_a_draft_that_is_always_wrong_costs_rows_and_no_steps() -> None:
    request = GenerateRequest(PROMPT, max_tokens=12)
    off, on = Engine(tiny(NAME)), Engine(tiny(NAME))
    (expected,) = off.run(request)
    wrong = [(token + 1) % tiny(NAME).vocab_size for token in expected.ids]
    found = _run(on, request, Guesses([*PROMPT, *wrong], k=3))
    assert found.same() == expected.same()
    assert on.loop.snapshot()["steps"] == off.loop.snapshot()["steps"]
    assert found.last.usage.accepted == 0
    assert on.loop.snapshot()["rollback_units"] == found.last.usage.rejected == 8 * 3 + 2 + 1


@pytest.mark.parametrize(
    "sampling",
    [
        {"min_p": {"value": 0.2}, "temperature": {"value": 1.2}},
        {"repetition_penalty": {"value": 1.8}},
        {"frequency_penalty": {"value": 2.0}, "presence_penalty": {"value": 1.0}},
        {"top_k": {"value": 3}, "temperature": {"value": 1.5}},
    ],
)
def test_filters_apply_at_every_position_of_a_draft(sampling: dict) -> None:
    """Case 24. Guesses are the tokens of a run without filters: those that the filters forbid must not pass."""
    unfiltered = alone(tiny(NAME), GenerateRequest(PROMPT, max_tokens=30))
    request = GenerateRequest(PROMPT, max_tokens=30, logprobs=3, sampling=sampling, seed=9)
    found = _run(Engine(tiny(NAME)), request, Guesses([*PROMPT, *unfiltered.ids]))
    assert found.same() == alone(tiny(NAME), request).same()
    assert found.ids != unfiltered.ids


def test_a_forbidden_id_is_refused_at_every_place_of_a_draft() -> None:
    """Case 24: logit_bias -100 on a token that the draft holds at each depth."""
    unfiltered = alone(tiny(NAME), GenerateRequest(PROMPT, max_tokens=16))
    for place in range(8):
        banned = unfiltered.ids[place]
        sampling = {"logit_bias": {"value": {banned: -100}}}
        request = GenerateRequest(PROMPT, max_tokens=16, sampling=sampling)
        found = _run(Engine(tiny(NAME)), request, Guesses([*PROMPT, *unfiltered.ids], k=12))
        assert banned not in found.ids
        assert found.same() == alone(tiny(NAME), request).same()


def test_min_tokens_and_stop_ids_hold_within_a_draft() -> None:
    plain = alone(tiny(NAME), GenerateRequest(PROMPT, max_tokens=16))
    for place in range(1, 10):
        for minimum in (0, place + 3):
            request = GenerateRequest(PROMPT, max_tokens=16, stop_ids=(plain.ids[place],), min_tokens=minimum)
            found = _run(Engine(tiny(NAME)), request, Guesses([*PROMPT, *plain.ids], k=12))
            assert found.same() == alone(tiny(NAME), request).same()
            assert len(found.ids) >= minimum


def test_a_seeded_request_with_drafts_does_not_depend_on_unseeded_neighbours() -> None:
    """Case 22."""
    seeded = GenerateRequest(PROMPT, max_tokens=24, sampling=SAMPLED, seed=77)
    others = [GenerateRequest(ids, max_tokens=24, sampling=SAMPLED, speculation=NGRAM) for ids in prompts(NAME)]
    results = Engine(tiny(NAME)).run(*others[:2], replace(seeded, speculation=NGRAM), *others[2:])
    assert results[2].same() == alone(tiny(NAME), seeded).same()


def test_no_span_goes_beyond_the_limit_of_its_job() -> None:
    expected = alone(tiny(NAME), GenerateRequest(PROMPT, max_tokens=13))
    engine, stops = Engine(tiny(NAME)), []
    launch = engine.pipeline.launch

    def watch(batch: Batch) -> Any:
        stops.extend(span.start + span.count - span.job.limit for span in batch.spans)
        return launch(batch)

    engine.pipeline.launch = watch  # type: ignore[method-assign]
    found = _run(engine, GenerateRequest(PROMPT, max_tokens=13), Guesses([*PROMPT, *expected.ids, 5, 5, 5, 5], k=64))
    assert found.ids == expected.ids
    assert max(stops) == 0


def test_a_step_with_drafts_that_is_launched_again_in_parts_finds_the_same() -> None:
    engine = Engine(tiny(TINY[1]))
    for ids in prompts(TINY[1]):
        engine.submit(GenerateRequest(ids, max_tokens=30, logprobs=1, speculation=NGRAM))
    drafted = 0
    for _ in range(14):
        whole = engine.loop.scheduler.plan()
        assert whole is not None
        outcomes = list(engine.pipeline.launch(whole).outcomes())
        parts: list = []
        for spans in (whole.spans[:3], whole.spans[3:]):
            if spans:
                parts += engine.pipeline.launch(Batch("tiny", spans, whole.copies, 0)).outcomes()
        assert parts == outcomes
        assert list(engine.pipeline.launch(whole).outcomes()) == outcomes
        drafted += sum(outcome.output.drafted for outcome in outcomes)
        for event in engine.loop.scheduler.accept(whole, outcomes):
            event.job.sink(event)
    assert drafted > 20


def test_a_preempted_job_waits_without_its_draft() -> None:
    expected = alone(tiny(NAME), GenerateRequest(PROMPT, max_tokens=20))
    engine = Engine(tiny(NAME))
    job = engine.pipeline.make_job(GenerateRequest(PROMPT, max_tokens=20), 1, lambda reply: None)
    job.payload.drafter = Guesses([*PROMPT, *expected.ids])
    engine.loop.submit(job)
    while not len(job.payload.draft):
        engine.loop._turn()
    assert job.goal > len(job.keys) // 4
    engine.loop.scheduler.lanes["tiny"].preempt(job.group)
    assert job.goal == len(job.keys) // 4
    assert not len(job.payload.draft)
    engine.loop.run_until_idle()
    assert job.payload is None


def test_scores_that_are_no_numbers_below_a_right_guess_fail_after_the_same_tokens() -> None:
    plain = alone(tiny(NAME), GenerateRequest(PROMPT, max_tokens=20))
    place = next(place for place in range(4, 20) if plain.ids[place] not in (*PROMPT, *plain.ids[:place]))
    request = GenerateRequest(PROMPT, max_tokens=20, logprobs=1)
    model: Any = _Poisoned(plain.ids[place])
    expected = Engine(model).run(request)[0]
    found = _run(Engine(model), request, Guesses([*PROMPT, *plain.ids], k=16))
    assert expected.ids == plain.ids[: place + 1]
    assert (found.same(), found.last.error) == (expected.same(), expected.last.error)
    assert found.last.usage.accepted > 0


class _Poisoned:
    """A decoder whose scores are no numbers after one id."""

    def __init__(self, bad: int) -> None:
        self._model, self._bad = tiny(NAME), bad

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, ids: Any, ctx: Any) -> Any:
        hidden = self._model.forward(ids, ctx)
        hidden[ids == self._bad] = np.nan
        return hidden


def test_usage_and_the_lane_count_what_was_guessed() -> None:
    engine = Engine(tiny(NAME))
    results = engine.run(*[GenerateRequest(ids, max_tokens=40, speculation=NGRAM) for ids in prompts(NAME)])
    counts = engine.loop.snapshot()["lanes"]["tiny"]["counts"]
    assert counts["accepted"] == sum(result.last.usage.accepted for result in results) > 0
    assert counts["drafted"] - counts["accepted"] == sum(result.last.usage.rejected for result in results)


def test_the_null_value_is_the_run_without_speculation() -> None:
    engines = [Engine(tiny(NAME)) for _ in range(3)]
    chosen: tuple = (None, {}, {"ngram": {"k": 0, "min_n": 1}})
    results = [
        engine.run(*[GenerateRequest(ids, max_tokens=20, logprobs=1, speculation=choice) for ids in prompts(NAME)])
        for engine, choice in zip(engines, chosen, strict=True)
    ]
    assert [r.same() for r in results[0]] == [r.same() for r in results[1]] == [r.same() for r in results[2]]
    assert [r.last.usage for r in results[0]] == [r.last.usage for r in results[2]]
    assert len({engine.loop.snapshot()["units"] for engine in engines}) == 1


def test_the_engines_default_is_for_requests_that_say_nothing() -> None:
    engine = Engine(tiny(NAME), replace(CONFIG, speculation="ngram"))
    for choice, drafts in ((None, True), ({}, False), ({"ngram": {"k": 2}}, True)):
        engine.pipeline.check(GenerateRequest(PROMPT, speculation=choice))
        job = engine.pipeline.make_job(GenerateRequest(PROMPT, speculation=choice), 1, lambda reply: None)
        assert (job.payload.drafter is not None) == drafts
    with pytest.raises(UnknownName) as caught:
        Engine(tiny(NAME), replace(CONFIG, speculation="ngrams"))
    assert "ngram" in caught.value.hint


def test_two_drafters_at_once_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = "vivace.techniques.speculation.ngram:Config"
    monkeypatch.setattr(index, "SPECULATION", Registry("speculation technique", {"ngram": config, "other": config}))
    with pytest.raises(InvalidRequest, match="expected one drafter"):
        Engine(tiny(NAME)).pipeline.check(GenerateRequest(PROMPT, speculation={"ngram": {"k": 1}, "other": {"k": 1}}))


@pytest.mark.parametrize(
    ("speculation", "field"),
    [
        ("ngram", "speculation"),
        ({"eagle9": {}}, "eagle9"),
        ({"ngram": {"k": 65}}, "ngram.k"),
        ({"ngram": {"k": 4, "min_n": 0}}, "ngram.min_n"),
        ({"ngram": {"k": 4, "min_n": 9}}, "ngram.min_n"),
        ({"ngram": {"n": 4}}, "ngram.n"),
        ({"ngram": 4}, "ngram"),
    ],
)
def test_a_bad_choice_is_refused_by_name(speculation: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Engine(tiny(NAME)).pipeline.check(GenerateRequest(PROMPT, speculation=speculation))
    assert caught.value.field == field
