"""What holds for every sampling technique: null is off, names, refusals."""

import importlib

import pytest
import torch

from tests.techniques.sampling.reference import random_logits, scores_after
from vivace.errors import UnknownName
from vivace.techniques import index


@pytest.mark.parametrize("name", index.SAMPLING)
def test_the_null_value_leaves_every_score_as_it_is_bit_for_bit(name: str) -> None:
    logits = random_logits(500)
    logits[7], logits[8] = -torch.inf, -0.0
    after = scores_after(name, logits, prompt=[1, 2], answer=[3, 3, 4])
    assert torch.equal(after.view(torch.int32), logits.view(torch.int32))
    assert index.SAMPLING.load(name).parse({}).is_null


@pytest.mark.parametrize("name", index.SAMPLING)
def test_a_technique_is_registered_under_its_file_and_names_its_origin(name: str) -> None:
    config = index.SAMPLING.load(name)
    assert config.name == name == config.__module__.rpartition(".")[2]
    assert config.origin
    documentation = importlib.import_module(config.__module__).__doc__
    assert "Cost:" in documentation
    assert "null value" in documentation


def test_an_unknown_technique_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(UnknownName, match=r"top_kk") as caught:
        index.parse(index.SAMPLING, {"top_kk": {"value": 3}})
    assert "top_k" in caught.value.hint
    assert caught.value.field == "top_kk"


def test_an_unknown_field_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(UnknownName, match=r"top_k has no field 'valeu'") as caught:
        index.parse(index.SAMPLING, {"top_k": {"valeu": 3}})
    assert "value" in caught.value.hint
