"""min_p: which ids stay."""

import pytest

from tests.techniques.sampling.reference import probabilities, random_logits, scores_after
from vivace.errors import InvalidRequest


@pytest.mark.parametrize("p", [1e-6, 0.05, 0.5, 1.0])
def test_ids_at_least_p_times_as_likely_as_the_best_stay(p: float) -> None:
    logits = random_logits(2000)
    exact = probabilities(logits.tolist())
    kept = scores_after("min_p", logits, value=p).isfinite()
    assert kept.tolist() == (exact >= p * exact.max() * (1 - 1e-6)).tolist()


@pytest.mark.parametrize("value", [-0.1, 1.1])
def test_a_value_out_of_range_is_refused(value: object) -> None:
    with pytest.raises(InvalidRequest, match=r"min_p is .*, expected a number from 0 to 1"):
        scores_after("min_p", random_logits(5), value=value)
