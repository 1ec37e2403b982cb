"""repetition_penalty: prompt and answer count, and both signs move towards unlikely."""

import pytest
import torch

from tests.techniques.sampling.reference import random_logits, scores_after
from vivace.errors import InvalidRequest


def test_ids_of_prompt_and_answer_become_less_likely() -> None:
    after = scores_after(
        "repetition_penalty", torch.tensor([4.0, -4.0, 4.0, -4.0]), prompt=[0, 0], answer=[1], value=2.0
    )
    assert after.tolist() == [2.0, -8.0, 4.0, -4.0]


@pytest.mark.parametrize("value", [0, -1, 11])
def test_a_value_out_of_range_is_refused(value: object) -> None:
    with pytest.raises(InvalidRequest, match=r"repetition_penalty is .*, expected a number above 0 and of at most 10"):
        scores_after("repetition_penalty", random_logits(5), value=value)
