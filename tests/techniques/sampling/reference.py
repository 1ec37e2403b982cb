"""The sampling filters once more, from their equations, in float64 and by full sorts: the real ones are held to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vivace.techniques import index
from vivace.techniques.sampling.base import History, Parts


def scores_after(
    name: str, logits: Tensor, prompt: Sequence[int] = (), answer: Sequence[int] = (), **fields: Any
) -> Tensor:
    """One real filter applied to a copy of the logits."""
    config = index.SAMPLING.load(name).parse(fields)
    apply = index.make(config, Parts(logits.shape[0], end_ids=(1, 2)))
    ids = torch.tensor([*prompt, *answer], dtype=torch.int64)
    return apply(logits.clone(), History(ids, len(prompt)))


def random_logits(vocab: int, seed: int = 0, width: float = 4.0) -> Tensor:
    return torch.randn(vocab, generator=torch.Generator().manual_seed(seed)) * width


def probabilities(scores: Sequence[float]) -> np.ndarray:
    """softmax in float64."""
    row = np.asarray(scores, np.float64)
    weights = np.exp(row - row.max())
    return weights / weights.sum()


def distance(p: np.ndarray, q: np.ndarray) -> float:
    """Total variation."""
    return float(np.abs(p - q).sum() / 2)


def expected(
    logits: Tensor, sampling: Mapping[str, Any], prompt: Sequence[int], answer: Sequence[int], end_ids: Sequence[int]
) -> np.ndarray:
    """The distribution that the documented order gives: edits, temperature, top_k, top_p, min_p."""
    row = [float(x) for x in logits]
    for key, bias in sampling.get("logit_bias", {}).items():
        row[key] += bias
    penalty = sampling.get("repetition_penalty", 1.0)
    for key in {*prompt, *answer}:
        row[key] = row[key] / penalty if row[key] > 0 else row[key] * penalty
    for key, count in Counter(answer).items():
        row[key] -= sampling.get("frequency_penalty", 0.0) * count + sampling.get("presence_penalty", 0.0)
    if len(answer) < sampling.get("min_tokens", 0):
        for key in end_ids:
            row[key] = -np.inf
    p = probabilities(np.array(row) / sampling.get("temperature", 1.0))
    p = _keep_best(p, sampling.get("top_k", 0) or len(row))
    mass, count = np.sort(p)[::-1].cumsum(), len(p)
    if sampling.get("top_p", 1.0) < 1.0:
        count = int(np.argmax(mass >= sampling["top_p"])) + 1
    p = _keep_best(p, count)
    p = np.where(p >= sampling.get("min_p", 0.0) * p.max(), p, 0.0)
    return p / p.sum()


def _keep_best(p: np.ndarray, count: int) -> np.ndarray:
    kept = np.zeros_like(p)
    best = np.argsort(-p, kind="stable")[:count]
    kept[best] = p[best]
    return kept / kept.sum()
