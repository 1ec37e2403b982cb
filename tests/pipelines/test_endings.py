"""How an answer ends: end ids, stop ids, lengths; and which requests are refused."""

from dataclasses import replace

import pytest

from tests.pipelines.engine import CONFIG, TINY, Engine, plain_greedy, prompts, tiny
from vivace.config import EngineConfig
from vivace.errors import ConfigError, ContextLengthExceeded, InvalidRequest, UnknownName
from vivace.pipelines.requests import GenerateRequest

NAME = TINY[0]
PROMPT = prompts(NAME)[0]


@pytest.fixture(scope="module")
def greedy() -> list[int]:
    """What the model says without an end."""
    return plain_greedy(tiny(NAME), PROMPT, 10)


def _fresh(greedy: list[int], at_least: int) -> int:
    """A place whose id did not occur before it."""
    return next(place for place in range(at_least, len(greedy)) if greedy[place] not in greedy[:place])


@pytest.mark.parametrize("is_own", [True, False])
def test_an_end_id_stops_the_answer_and_is_not_part_of_it(greedy: list[int], is_own: bool) -> None:
    place = _fresh(greedy, 2)
    end = greedy[place]
    request = GenerateRequest(PROMPT, max_tokens=10, logprobs=0, stop_ids=() if is_own else (end,))
    (result,) = Engine(tiny(NAME), end_ids=(end,) if is_own else ()).run(request)
    assert result.ids == greedy[:place]
    assert len(result.logprobs) == place
    assert (result.last.finished, result.last.stop_id) == ("stop", end)
    assert (result.last.usage.prompt, result.last.usage.generated) == (len(PROMPT), place)


def test_ignore_eos_goes_on_past_the_models_ends_but_not_past_stop_ids(greedy: list[int]) -> None:
    first, second = _fresh(greedy, 1), _fresh(greedy, _fresh(greedy, 1) + 1)
    engine = Engine(tiny(NAME), end_ids=(greedy[first],))
    whole, cut = engine.run(
        GenerateRequest(PROMPT, max_tokens=10, ignore_eos=True),
        GenerateRequest(PROMPT, max_tokens=10, ignore_eos=True, stop_ids=(greedy[second],)),
    )
    assert (whole.ids, whole.last.finished) == (greedy, "length")
    assert (cut.ids, cut.last.stop_id) == (greedy[:second], greedy[second])


def test_min_tokens_holds_the_end_back(greedy: list[int]) -> None:
    end = greedy[_fresh(greedy, 1)]
    (result,) = Engine(tiny(NAME), end_ids=(end,)).run(GenerateRequest(PROMPT, max_tokens=8, min_tokens=7))
    assert len(result.ids) >= 7
    assert end not in result.ids


def test_no_tokens_scores_the_prompt_alone() -> None:
    (result,) = Engine(tiny(NAME)).run(GenerateRequest(PROMPT, max_tokens=0, prompt_logprobs=1))
    assert result.ids == []
    assert len(result.prompt_logprobs) == len(PROMPT) - 1
    assert (result.last.finished, result.last.usage.generated) == ("length", 0)


def test_without_max_tokens_the_answer_goes_on_to_the_context_length() -> None:
    engine = Engine(tiny(NAME), replace(CONFIG, max_length=len(PROMPT) + 9))
    (result,) = engine.run(GenerateRequest(PROMPT))
    assert (len(result.ids), result.last.finished) == (9, "length")


def test_the_context_error_names_context_prompt_and_max_tokens() -> None:
    engine = Engine(tiny(NAME), replace(CONFIG, max_length=204))
    engine.pipeline.check(GenerateRequest((5,) * 8, max_tokens=196))
    with pytest.raises(ContextLengthExceeded, match=r"204 .* 8 .* 197"):
        engine.pipeline.check(GenerateRequest((5,) * 8, max_tokens=197))
    with pytest.raises(ContextLengthExceeded, match=r"204 .* 204: no room"):
        engine.pipeline.check(GenerateRequest((5,) * 204))


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"ids": ()}, "prompt"),
        ({"ids": (1, -1)}, "prompt"),
        ({"ids": (1, 10**9)}, "prompt"),
        ({"ids": (1, "2")}, "prompt"),
        ({"ids": (True,)}, "prompt"),
        ({"stop_ids": (10**9,)}, "stop_token_ids"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 2.5}, "max_tokens"),
        ({"max_tokens": 3, "min_tokens": 4}, "min_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 1, "sampling": {"min_tokens": {"value": 1}}}, "min_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"priority": 1.5}, "priority"),
        ({"seed": 2**64}, "seed"),
        ({"seed": "1"}, "seed"),
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"sampling": ["top_p"]}, "sampling"),
        ({"sampling": {"top_p": {"value": 1.5}}}, "top_p"),
        ({"sampling": {"logit_bias": {"value": {10**6: 1}}}}, "logit_bias.1000000"),
        ({"sampling": {"top_p": 0.5}}, "top_p"),
    ],
)
def test_a_bad_field_is_refused_by_name(fields: dict, field: str) -> None:
    request = GenerateRequest(**{"ids": PROMPT, **fields})
    pipeline = Engine(tiny(NAME)).pipeline
    for refuse in (pipeline.check, lambda request: pipeline.make_job(request, 1, lambda reply: None)):
        with pytest.raises(InvalidRequest) as caught:
            refuse(request)
        assert caught.value.field == field


def test_logprobs_over_the_maximum_name_the_maximum() -> None:
    with pytest.raises(InvalidRequest, match=r"logprobs is 21, expected a whole number from 0 to 20"):
        Engine(tiny(NAME)).pipeline.check(GenerateRequest(PROMPT, logprobs=21))


def test_an_unknown_technique_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownName) as caught:
        Engine(tiny(NAME)).pipeline.check(GenerateRequest(PROMPT, sampling={"topp": {"value": 0.5}}))
    assert "top_p" in caught.value.hint


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_bytes": 1000}, "hold no page"),
        ({"max_length": 10**6}, "model's context length"),
        ({"max_length": 1024, "kv_bytes": 200_000}, "kv_bytes = 200000 holds"),
    ],
)
def test_memory_that_holds_no_job_is_a_config_error(changes: dict, message: str) -> None:
    config: EngineConfig = replace(CONFIG, **changes)
    with pytest.raises(ConfigError, match=message):
        Engine(tiny(NAME), config)
