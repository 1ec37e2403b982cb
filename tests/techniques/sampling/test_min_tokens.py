"""min_tokens: until when the end ids are excluded."""

import pytest

from tests.techniques.sampling.reference import random_logits, scores_after
from vivace.errors import InvalidRequest


@pytest.mark.parametrize(("answer", "is_open"), [([], False), ([4, 4], False), ([4, 4, 4], True)])
def test_end_ids_are_excluded_until_the_answer_is_long_enough(answer: list[int], is_open: bool) -> None:
    after = scores_after("min_tokens", random_logits(5), prompt=[0, 0, 0, 0], answer=answer, value=3)
    assert after.isfinite().tolist() == [True, is_open, is_open, True, True]


@pytest.mark.parametrize("value", [-1, 2.0])
def test_a_value_out_of_range_is_refused(value: object) -> None:
    with pytest.raises(InvalidRequest, match=r"min_tokens is .*, expected a whole number of at least 0"):
        scores_after("min_tokens", random_logits(5), value=value)
