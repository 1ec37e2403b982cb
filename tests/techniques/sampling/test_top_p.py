"""top_p: the nucleus is the smallest set that holds p."""

import numpy as np
import pytest
import torch

from tests.techniques.sampling.reference import probabilities, random_logits, scores_after
from vivace.errors import InvalidRequest


@pytest.mark.parametrize("width", [0.01, 1.0, 6.0])  # nearly uniform: the nucleus is wide and the search must grow
@pytest.mark.parametrize("p", [1e-9, 0.1, 0.5, 0.9, 0.999])
def test_the_nucleus_is_the_smallest_set_that_holds_p(p: float, width: float) -> None:
    logits = random_logits(20000, seed=3, width=width)
    exact = np.sort(probabilities(logits.tolist()))[::-1].cumsum()
    kept = int(scores_after("top_p", logits, value=p).isfinite().sum())
    assert exact[kept - 1] >= p - 1e-12
    assert kept == 1 or exact[kept - 2] < p + 1e-12


def test_it_works_on_what_another_filter_left() -> None:
    logits = torch.tensor([2.0, 1.9, 1.8, 1.7])
    logits[2:] = -torch.inf
    assert scores_after("top_p", logits, value=0.6).isfinite().tolist() == [True, True, False, False]


def test_scores_equal_to_the_last_kept_one_stay_too() -> None:
    assert scores_after("top_p", torch.zeros(10), value=0.5).isfinite().all()


@pytest.mark.parametrize("value", [0, -0.5, 1.01, float("nan")])
def test_a_value_out_of_range_is_refused(value: object) -> None:
    with pytest.raises(InvalidRequest, match=r"top_p is .*, expected a number above 0 and of at most 1"):
        scores_after("top_p", random_logits(5), value=value)
