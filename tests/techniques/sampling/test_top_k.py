"""top_k: which ids stay."""

import pytest
import torch

from tests.techniques.sampling.reference import random_logits, scores_after
from vivace.errors import InvalidRequest


@pytest.mark.parametrize("k", [1, 2, 40, 999, 1000, 5000])
def test_the_k_most_likely_ids_stay(k: int) -> None:
    logits = random_logits(1000)
    kept = scores_after("top_k", logits, value=k).isfinite()
    assert set(kept.nonzero().flatten().tolist()) == set(logits.argsort(descending=True)[:k].tolist())


def test_scores_equal_to_the_last_kept_one_stay_too() -> None:
    after = scores_after("top_k", torch.tensor([1.0, 3.0, 2.0, 2.0]), value=2)
    assert after.isfinite().tolist() == [False, True, True, True]


@pytest.mark.parametrize("value", [-1, 1.5, True, "3"])
def test_a_value_out_of_range_is_refused(value: object) -> None:
    with pytest.raises(InvalidRequest, match=r"top_k is .*, expected a whole number of at least 0"):
        scores_after("top_k", random_logits(5), value=value)
