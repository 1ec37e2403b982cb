"""How one request draws its ids: the chosen filters in their fixed order, then the most likely id or a random one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from vivace.errors import InvalidRequest, StepFailed
from vivace.kernels.ops import DrawSpec, Ops
from vivace.techniques import index
from vivace.techniques.sampling.base import Filter, History, Parts
from vivace.techniques.sampling.draw import categorical, greedy, uniform

SEED_LOW, SEED_HIGH = -(2**63), 2**64 - 1
_DRAW = ("temperature", "top_k", "top_p", "min_p")  # the filters that `Ops.draw` knows


class Scored:
    """The model's scores after one row.

    best     id of the largest, the lowest of equals; of a NaN if there is one
    largest  its score
    row      all of them, (vocab,) float32; made when asked for, because most draws need no more than the best id
    """

    __slots__ = ("_place", "_scores", "best", "largest")

    def __init__(self, scores: Tensor, place: int, best: int, largest: float) -> None:
        """scores (rows, vocab), `place` the row that is meant."""
        self._scores, self._place, self.best, self.largest = scores, place, best, largest

    @property
    def row(self) -> Tensor:
        return self._scores[self._place]

    @classmethod
    def of(cls, scores: Tensor, best: Tensor) -> Iterator[Scored]:
        """Each row of some scores (rows, vocab), and the id of its largest (rows,)."""
        largest = scores.gather(1, best[:, None])[:, 0].tolist()
        for place, (token, score) in enumerate(zip(best.tolist(), largest, strict=True)):
            yield cls(scores, place, token, score)


class Sampler:
    """Draws ids from rows of scores. It keeps no state: the same row, history and position give the same id.

    Without a temperature above 0 the draw is greedy, and filters that only cut the tail are left out, as they never
    touch the most likely id. With `ops` the filters from the temperature on and the draw are one operation; without
    them, one filter after the other. Raises InvalidRequest or UnknownName for a choice that cannot be made.
    """

    def __init__(
        self, sampling: Mapping[str, Mapping[str, Any]], parts: Parts, seed: int, ops: Ops | None = None
    ) -> None:
        if not SEED_LOW <= seed <= SEED_HIGH:
            message = f"seed is {seed}, expected a whole number of at most 64 bits"
            raise InvalidRequest(message, field="seed", hint="leave seed out for a random one")
        configs = index.parse(index.SAMPLING, sampling)
        order = list(index.SAMPLING)
        active = [name for name in order if name in configs and not configs[name].is_null]
        self.is_greedy = "temperature" not in active
        self._ops = None if self.is_greedy else ops
        if self.is_greedy or ops is not None:
            active = [name for name in active if order.index(name) < order.index("temperature")]
        self._spec = DrawSpec(**{name: value for name in _DRAW if (value := getattr(configs.get(name), "value", None))})
        made = {name: index.make(config, parts) for name, config in configs.items()}
        self.filters: tuple[Filter, ...] = tuple(made[name] for name in active)
        self.seed = seed

    def filtered(self, logits: Tensor, history: Callable[[], History]) -> Tensor:
        """What is left to draw from: (vocab,) float32, excluded ids at minus infinity. `logits` stays as it is."""
        if not self.filters:
            return logits
        scores, past = logits.clone(), history()
        for apply in self.filters:
            scores = apply(scores, past)
        return scores

    def draw(self, scored: Scored, history: Callable[[], History], position: int) -> int:
        """One id for `position`.

        Raises StepFailed when the model gave no usable number, or when the filters exclude every id.
        """
        if not math.isfinite(scored.largest):
            raise StepFailed(f"the model's scores at position {position} hold {scored.largest}")
        if not self.filters and self.is_greedy:
            return scored.best
        scores = self.filtered(scored.row, history)
        if self._ops is not None:
            return self._draw(self._ops, scores, position)
        most_likely = greedy(scores)
        if not math.isfinite(scores[most_likely]):
            raise _nothing_left(position)
        return most_likely if self.is_greedy else categorical(scores, self.seed, position)

    def _draw(self, ops: Ops, scores: Tensor, position: int) -> int:
        number = torch.tensor([uniform(self.seed, position)], dtype=torch.float64)
        try:
            return int(ops.draw(scores[None], self._spec, number))
        except ValueError as error:
            raise _nothing_left(position) from error


def _nothing_left(position: int) -> StepFailed:
    return StepFailed(f"sampling excludes every id at position {position}", hint="lower min_tokens")
