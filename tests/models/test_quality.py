"""What is said about two sets of scores, beside the definitions in float64, and the pass over a text."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.models.quantized import TINY
from tests.oracle.driver import Driver
from vivace.kernels.select import resolve
from vivace.models.base import Decoder
from vivace.models.load import load_model
from vivace.models.quality import compare, read_text, scores_of
from vivace.weights.measured import Quality


def drawn(seed: int, size: float = 3.0) -> Tensor:
    return size * torch.randn(40, 300, generator=torch.Generator().manual_seed(seed))


def by_definition(exact: Tensor, found: Tensor, tokens: Tensor) -> Quality:
    p, q = (torch.log_softmax(scores.double(), -1) for scores in (exact, found))
    kl = (p.exp() * (p - q)).sum(-1).mean()
    gap = (p - q).gather(1, tokens[:, None]).mean()
    same = (exact.argmax(-1) == found.argmax(-1)).double().mean()
    return Quality(len(tokens), float(kl), float(same), float(gap.exp() - 1))


@pytest.mark.parametrize("noise", [3.0, 0.1, 1e-3])
@pytest.mark.parametrize("step", [40, 7, 1])
def test_it_is_what_the_definitions_say_however_it_is_cut(noise: float, step: int) -> None:
    exact = drawn(0)
    found, tokens = exact + drawn(1, noise) + 50.0, torch.arange(40) * 7  # a constant changes no distribution
    said = compare(zip(exact.split(step), found.split(step), tokens.split(step), strict=True))
    true = by_definition(exact, found, tokens)
    assert (said.positions, said.agreement) == (true.positions, pytest.approx(true.agreement))
    assert said.divergence == pytest.approx(true.divergence, rel=1e-3, abs=1e-8)
    assert said.perplexity == pytest.approx(true.perplexity, rel=1e-3, abs=1e-5)


def test_equal_scores_differ_in_nothing() -> None:
    scores = drawn(2)
    assert compare([(scores, scores.clone(), torch.arange(40))]) == Quality(40, 0.0, 1.0, 0.0)


def test_what_is_no_number_is_no_small_divergence() -> None:
    scores = drawn(3)
    spoilt = scores.clone()
    spoilt[5, 5] = math.nan
    assert not compare([(scores, spoilt, torch.arange(40))]).divergence <= 1e9


def test_a_text_is_read_as_the_engine_reads_it() -> None:
    ops = resolve(choice="rows")
    model = load_model(TINY, ops)
    assert isinstance(model, Decoder)
    ids = torch.randint(0, model.vocab_size, (70,), generator=torch.Generator().manual_seed(4)).tolist()
    driver = Driver(model, ops, page_size=16)
    expected = driver.prefill(driver.add(len(ids)), ids, 13)
    with torch.inference_mode():
        assert torch.equal(torch.cat(list(scores_of(model, ops, read_text(model, ops, ids)))), expected)
