"""The chain of filters and the draw: documented order, distance to a float64 reference, purity."""

import math

import numpy as np
import pytest
import torch

from tests.techniques.sampling.reference import distance, expected, probabilities, random_logits
from vivace.errors import InvalidRequest, StepFailed
from vivace.kernels.select import resolve
from vivace.pipelines.sampler import Sampler, Scored
from vivace.techniques.sampling.base import History, Parts

PROMPT, ANSWER, END = [5, 9, 9, 17], [3, 9, 3, 3, 40], (1, 3)
SETTINGS = {
    "logit_bias": {7: 3.0, 9: -2.0},
    "repetition_penalty": 1.3,
    "frequency_penalty": 0.4,
    "presence_penalty": -0.7,
    "min_tokens": 9,
    "temperature": 0.8,
    "top_k": 40,
    "top_p": 0.9,
    "min_p": 0.02,
}


def _history() -> History:
    return History(torch.tensor(PROMPT + ANSWER), len(PROMPT))


def _scored(logits: torch.Tensor) -> Scored:
    return next(Scored.of(logits[None], logits[None].argmax(-1)))


def _sampler(settings: dict, seed: int = 0, vocab: int = 400) -> Sampler:
    return Sampler({name: {"value": value} for name, value in settings.items()}, Parts(vocab, END), seed)


@pytest.mark.parametrize("left_out", [None, *SETTINGS])
def test_the_chain_gives_the_reference_distribution(left_out: str | None) -> None:
    settings = {name: value for name, value in SETTINGS.items() if name != left_out}
    settings.setdefault("temperature", 1.0)
    for seed in range(20):
        logits = random_logits(400, seed, width=2.0)
        ours = probabilities(_sampler(settings).filtered(logits, _history).tolist())
        assert distance(ours, expected(logits, settings, PROMPT, ANSWER, END)) < 1e-5  # float32 against float64


def test_the_order_in_which_a_request_names_techniques_does_not_matter() -> None:
    logits = random_logits(400)
    backwards = dict(reversed(SETTINGS.items()))
    assert torch.equal(_sampler(SETTINGS).filtered(logits, _history), _sampler(backwards).filtered(logits, _history))


def test_logits_are_never_written_to() -> None:
    logits = random_logits(400)
    before = logits.clone()
    _sampler(SETTINGS).draw(_scored(logits), _history, 3)
    assert torch.equal(logits, before)


def test_nothing_chosen_is_greedy() -> None:
    logits = random_logits(400)
    assert _sampler({}).draw(_scored(logits), _history, 3) == int(logits.argmax())
    assert _sampler({"top_k": 5, "top_p": 0.5}).draw(_scored(logits), _history, 3) == int(logits.argmax())


def test_greedy_still_applies_edits() -> None:
    logits = random_logits(400)
    assert _sampler({"logit_bias": {11: 100.0}}).draw(_scored(logits), _history, 3) == 11


def test_temperature_one_thousandth_draws_the_most_likely_of_distinct_scores() -> None:
    logits = random_logits(400)
    drawn = {_sampler({"temperature": 0.001}, seed).draw(_scored(logits), _history, 3) for seed in range(20)}
    assert drawn == {int(logits.argmax())}


def test_draws_of_the_whole_chain_follow_the_reference() -> None:
    logits = random_logits(400, width=2.0)
    exact, draws, sampler = expected(logits, SETTINGS, PROMPT, ANSWER, END), 4000, _sampler(SETTINGS)
    counts = np.bincount([sampler.draw(_scored(logits), _history, place) for place in range(draws)], minlength=400)
    mean = 0.5 * np.sqrt(2 * exact * (1 - exact) / (math.pi * draws)).sum()  # mean distance of a perfect sampler
    assert distance(counts / draws, exact) < 2 * mean


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0}])
def test_scores_that_are_no_numbers_fail_the_step(value: float, settings: dict) -> None:
    logits = random_logits(400)
    logits[33] = value
    with pytest.raises(StepFailed, match=r"position 12"):
        _sampler(settings).draw(_scored(logits), _history, 12)


def test_excluding_every_id_fails_the_step() -> None:
    sampler = Sampler({"min_tokens": {"value": 9}}, Parts(2, (0, 1)), 0)
    with pytest.raises(StepFailed, match=r"excludes every id"):
        sampler.draw(_scored(torch.zeros(2)), _history, 1)


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1])
def test_a_seed_over_64_bits_is_refused(seed: int) -> None:
    with pytest.raises(InvalidRequest, match=r"seed"):
        _sampler({}, seed)


@pytest.mark.parametrize("left_out", [None, *SETTINGS])
def test_one_operation_draws_what_the_chain_draws(left_out: str | None) -> None:
    settings = {name: value for name, value in SETTINGS.items() if name != left_out}
    for seed in range(20):
        logits = random_logits(400, seed)
        chain = _sampler(settings, seed)
        for ops in (resolve(choice="ref"), resolve(choice="auto", threads=1)):
            named = {name: {"value": value} for name, value in settings.items()}
            fused = Sampler(named, Parts(400, END), seed, ops)
            assert fused.draw(_scored(logits), _history, 9) == chain.draw(_scored(logits), _history, 9)


def test_one_operation_says_so_when_nothing_is_left_to_draw() -> None:
    settings = {"temperature": {"value": 1.0}, "min_tokens": {"value": 9}}
    sampler = Sampler(settings, Parts(2, (0, 1)), 0, resolve(choice="auto", threads=1))
    with pytest.raises(StepFailed, match="excludes every id at position 3"):
        sampler.draw(_scored(torch.zeros(2)), _history, 3)
