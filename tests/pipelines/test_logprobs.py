"""Log-probabilities against exact sums."""

import math

import pytest
import torch

from vivace.errors import StepFailed
from vivace.pipelines.logprobs import token_logprob


def test_values_equal_an_exact_log_softmax() -> None:
    logits = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 10
    total = math.log(math.fsum(math.exp(x) for x in logits.tolist()))
    found = token_logprob(logits, 17, 5)
    assert found.logprob == pytest.approx(float(logits[17]) - total, abs=1e-12)
    best = sorted(range(1000), key=lambda key: -float(logits[key]))[:5]
    assert [key for key, _ in found.top] == best
    assert [value for _, value in found.top] == pytest.approx([float(logits[key]) - total for key in best], abs=1e-12)


def test_equal_scores_are_listed_by_id() -> None:
    logits = torch.tensor([0.0, 1.0, 0.0, 1.0, 1.0, 0.0])
    assert [key for key, _ in token_logprob(logits, 0, 2).top] == [1, 3]
    assert [key for key, _ in token_logprob(logits, 0, 5).top] == [1, 3, 4, 0, 2]


def test_impossible_ids_are_never_listed() -> None:
    logits = torch.tensor([0.0, -math.inf, -1.0])
    assert [key for key, _ in token_logprob(logits, 0, 3).top] == [0, 2]
    assert [key for key, _ in token_logprob(logits, 0, 20).top] == [0, 2]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_scores_that_are_no_numbers_fail_the_step(bad: float) -> None:
    with pytest.raises(StepFailed):
        token_logprob(torch.tensor([0.0, bad]), 0, 1)
