"""What integer activations change: scores of a paragraph beside those of float32 on the same weights.

The bounds are those of the error model. A group's activations have an error of half a level: 1 / 16382 of the largest
one with int14, 1 / 254 with int8. In the sum over thousands of inputs these errors average out, so scores move by about
0.002 and 0.1 of their spread.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.oracle.driver import Driver
from vivace.api.text import load_text
from vivace.config import ActivationFormat
from vivace.kernels.cpu import bind
from vivace.kernels.select import resolve
from vivace.models.load import load_model

REASON = bind.why_missing()
pytestmark = [pytest.mark.real, pytest.mark.skipif(REASON is not None, reason=f"no native kernels: {REASON}")]

PARAGRAPH = """The lighthouse stood on a spit of rock that the sea covered twice a day. For forty years the keeper
had climbed its two hundred and twelve steps before dusk, trimmed the wick, wound the clockwork and
written the weather into a book with a marbled cover. He knew the ships by their lanterns and the
fishermen by their voices. When the company sent a young engineer from the capital to replace the
oil with electricity, the old man made tea, showed her the lens, and asked whether the new lamp
would also need somebody to talk to the birds. She laughed, but she stayed for a week, and on the
last evening she wrote in the book: "Wind from the south-west, force four, rising. Visibility good.
At ten o'clock the light was switched on, and nobody on the water noticed any difference, which is
exactly what we had hoped for. The keeper says that he will sleep downstairs from now on. I do not
believe him."
"""


@pytest.fixture(scope="module")
def scores(real_model: Callable[[str], Path]) -> Callable[[str, ActivationFormat], Tensor]:
    """Scores (positions, vocab) of the paragraph with one activation format."""
    found: dict[tuple[str, str], Tensor] = {}

    def of(name: str, activations: ActivationFormat) -> Tensor:
        if (name, activations) not in found:
            path = real_model(name)
            ids = load_text(path).tokenizer.encode(PARAGRAPH)
            ops = resolve(choice="native", threads=2, activations=activations)
            driver = Driver(load_model(path, ops), ops, page_size=16)  # type: ignore[arg-type]
            found[name, activations] = driver.prefill(driver.add(len(ids)), ids, 100)
        return found[name, activations]

    return of


@pytest.mark.parametrize("name", ["smollm2", "gemma3-270m"])
def test_int14_chooses_every_token_that_float32_chooses(name: str, scores: Callable[..., Tensor]) -> None:
    exact, found = scores(name, "f32"), scores(name, "int14")
    assert len(exact) >= 200
    print(f"{name} int14: {_describe(exact, found)}")
    margin = exact.topk(2).values.diff().abs().flatten()
    is_same = exact.argmax(-1) == found.argmax(-1)
    assert is_same[margin > 0.02].all() and is_same.float().mean() >= 0.995  # closer than its error is a tie
    assert _divergence(exact, found) < 1e-5
    assert (exact - found).abs().max() < 0.01 * exact.std()


@pytest.mark.parametrize("name", ["smollm2", "gemma3-270m"])
def test_int8_is_close_to_float32(name: str, scores: Callable[..., Tensor]) -> None:
    exact, found = scores(name, "f32"), scores(name, "int8")
    print(f"{name} int8: {_describe(exact, found)}")
    assert (exact.argmax(-1) == found.argmax(-1)).float().mean() > 0.9
    assert _divergence(exact, found) < 0.02


def _divergence(exact: Tensor, found: Tensor) -> float:
    """Mean Kullback-Leibler divergence of the two distributions, in nats."""
    total = 0.0
    for some, others in zip(exact.split(16), found.split(16), strict=True):  # all positions at once take gigabytes
        p, q = torch.log_softmax(some.double(), -1), torch.log_softmax(others.double(), -1)
        total += float((p.exp() * (p - q)).sum())
    return total / len(exact)


def _describe(exact: Tensor, found: Tensor) -> str:
    agreed = int((exact.argmax(-1) == found.argmax(-1)).sum())
    error = float((exact - found).abs().max())
    divergence = _divergence(exact, found)
    return f"top-1 {agreed}/{len(exact)}, KL {divergence:.2e}, largest error {error:.4f}, spread {exact.std():.2f}"
