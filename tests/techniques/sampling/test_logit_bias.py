"""logit_bias: what is added, and which keys and numbers are refused."""

import pytest
import torch

from tests.techniques.sampling.reference import random_logits, scores_after
from vivace.errors import InvalidRequest


def test_biases_are_added_to_their_ids() -> None:
    assert scores_after("logit_bias", torch.zeros(4), value={0: -100, "3": 2.5}).tolist() == [-100.0, 0.0, 0.0, 2.5]


@pytest.mark.parametrize("key", [5, 191222, "191222"])
def test_an_id_beyond_the_vocabulary_is_refused(key: object) -> None:
    with pytest.raises(InvalidRequest, match=r"expected ids from 0 to 4") as caught:
        scores_after("logit_bias", random_logits(5), value={key: -100})
    assert caught.value.field == f"logit_bias.{key}"


@pytest.mark.parametrize(
    "value", [{"AI": -100}, {-1: 1}, {"²": 1}, {True: 1}, {1.0: 1}, [1, 2], 7, {1: 100.5}, {1: "x"}]
)
def test_other_keys_and_numbers_are_refused(value: object) -> None:
    with pytest.raises(InvalidRequest, match=r"logit_bias"):
        scores_after("logit_bias", random_logits(5), value=value)
