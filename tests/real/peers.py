"""The peers of the proofs with real weights: transformers and sentence-transformers on the very same files."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the files are local: nothing may be looked up

CHATS = (
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain photosynthesis in one sentence.",
    "List three prime numbers above 100.",
    "Translate 'good morning' into Spanish.",
    "Why is the sky blue?",
    "Give me a Python function that reverses a string.",
    "Who wrote the play Hamlet?",
)
COMPLETIONS = (
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    ",
    "The three laws of thermodynamics state that",
    "Water boils at",
    "In 1969, the first humans",
    "El sol sale por el",
    "The recipe needs two eggs, a cup of flour and",
)


def load_decoder(path: Path) -> Any:
    """The transformers model of a GGUF file, its weights dequantized to float32 by the gguf package."""
    from transformers import AutoModelForCausalLM  # here, since this import alone takes seconds

    with contextlib.redirect_stderr(io.StringIO()):  # progress bars
        model = AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=torch.float32)
    return model.eval()


def logits_of(model: Any, ids: Sequence[int]) -> Tensor:
    """Logits after every position in one pass: (positions, vocabulary)."""
    with torch.no_grad():
        found: Tensor = model(input_ids=torch.tensor([list(ids)])).logits[0]
    return found


def greedy(model: Any, ids: Sequence[int], count: int, stop: Sequence[int]) -> list[tuple[int, float]]:
    """`count` greedy tokens (fewer after one of `stop`, which is kept), each with the best one's margin."""
    found: list[tuple[int, float]] = []
    step, cache = torch.tensor([list(ids)]), None
    with torch.no_grad():
        while len(found) < count and not (found and found[-1][0] in stop):
            result = model(input_ids=step, cache=cache, use_cache=True, logits_to_keep=1)
            best = result.logits[0, -1].topk(2)
            found.append((int(best.indices[0]), float(best.values[0] - best.values[1])))
            step, cache = torch.tensor([[found[-1][0]]]), result.cache
    return found
