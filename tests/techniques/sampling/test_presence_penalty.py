"""presence_penalty: what is subtracted, and that the prompt does not count."""

import pytest
import torch

from tests.techniques.sampling.reference import random_logits, scores_after
from vivace.errors import InvalidRequest


def test_each_generated_id_is_lowered_once() -> None:
    after = scores_after("presence_penalty", torch.zeros(4), prompt=[3, 3, 1], answer=[1, 1, 2, 1], value=0.5)
    assert after.tolist() == [0.0, -0.5, -0.5, 0.0]


@pytest.mark.parametrize("value", [-2.1, 2.1])
def test_a_value_out_of_range_is_refused(value: object) -> None:
    with pytest.raises(InvalidRequest, match=r"presence_penalty is .*, expected a number from -2 to 2"):
        scores_after("presence_penalty", random_logits(5), value=value)
