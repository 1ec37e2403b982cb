"""Temperature: the equation, zero, tiny and huge values."""

import numpy as np
import pytest
import torch

from tests.techniques.sampling.reference import distance, probabilities, random_logits, scores_after
from vivace.errors import InvalidRequest


@pytest.mark.parametrize("value", [0.3, 0.7, 1.7, 50.0])
def test_probabilities_follow_the_equation(value: float) -> None:
    logits = random_logits(300)
    ours = probabilities(scores_after("temperature", logits, value=value).tolist())
    assert distance(ours, probabilities(logits.double() / value)) < 1e-6  # one float32 rounding per score


@pytest.mark.parametrize("value", [0.001, 1e-30, 1e-320])
def test_a_tiny_temperature_is_used_as_it_is_and_stays_finite(value: float) -> None:
    logits = torch.tensor([1.0, 1.0005, -3e38, 0.5])
    ours = probabilities(scores_after("temperature", logits, value=value).tolist())
    assert np.isfinite(ours).all()
    if value == 0.001:
        assert ours[0] == pytest.approx(np.exp(-0.5) / (1 + np.exp(-0.5)), abs=1e-4)
    else:
        assert ours.tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize("value", [-0.1, 100.5, float("nan"), float("inf"), True, "1", None])
def test_a_value_out_of_range_is_refused_with_its_range(value: object) -> None:
    with pytest.raises(InvalidRequest, match=r"temperature is .*, expected a number from 0 to 100") as caught:
        scores_after("temperature", random_logits(5), value=value)
    assert caught.value.field == "temperature"
