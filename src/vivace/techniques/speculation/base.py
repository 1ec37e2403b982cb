"""The speculation slot: a drafter guesses tokens that may come next, and one step of the model checks all of them.

A drafter proposes a tree of tokens below the last token that is known. The tree takes rows of the next step beside the
row of that token; `pipelines.verify` then draws the next token as it would have been drawn without a draft, and goes on
from the guess that it meets. What a draft costs is rows; what it saves is steps; what it never changes is the answer
(see `pipelines.verify` for why).

The null value is k = 0: nothing is drafted, and the run is the plain run bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from vivace.techniques.base import TechniqueConfig, Whole, option

__all__ = ["EMPTY", "MAX_UNITS", "ROOT", "DraftConfig", "DraftTree", "Drafter", "Parts", "Whole", "option", "report"]

ROOT = -1  # the parent of a guess that follows the last known token
MAX_UNITS = 64  # of one draft: more rows cost more than the steps they could save


@dataclass(frozen=True)
class DraftTree:
    """Guesses below the last known token.

    ids      the guessed tokens
    parents  for each guess the place of the one before it, or ROOT

    A parent stands before its children, so that any first part of a tree is a tree: a scheduler with room for fewer
    rows cuts it at the end. A drafter puts the guesses that it would keep longest first.
    """

    ids: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        assert len(self.ids) == len(self.parents), f"{len(self.ids)} guesses have {len(self.parents)} parents"
        for place, parent in enumerate(self.parents):
            assert ROOT <= parent < place, f"guess {place} has the parent {parent}, which does not stand before it"

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def chain(cls, ids: tuple[int, ...]) -> DraftTree:
        """Each guess follows the one before it."""
        return cls(ids, tuple(range(ROOT, len(ids) - 1)))

    @property
    def is_chain(self) -> bool:
        """Whether each guess follows the one before it."""
        return all(parent == place - 1 for place, parent in enumerate(self.parents))

    def first(self, count: int) -> DraftTree:
        """The tree of its first `count` guesses."""
        return self if count >= len(self) else DraftTree(self.ids[:count], self.parents[:count])

    def depths(self) -> list[int]:
        """How far each guess is from the last known token: 1 for the children of the root."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return depths

    def child(self, place: int, token: int) -> int | None:
        """The first guess below `place` (or ROOT) that is `token`, or None."""
        for other in range(place + 1, len(self)):
            if self.parents[other] == place and self.ids[other] == token:
                return other
        return None


EMPTY = DraftTree()


class Drafter(Protocol):
    """Guesses for one job. What it keeps between calls only saves work: a draft is a function of the history alone, so
    that a step that is run again, or a job that lost its pages, drafts as before."""

    def propose(self, history: npt.NDArray[np.int64], room: int) -> DraftTree:
        """Guesses after the text `history` (n,), n >= 1: at most `room` >= 1 of them, all ids of the vocabulary."""
        ...


def report(counts: Mapping[str, int]) -> dict[str, float]:
    """What guessing was worth, from a lane's counts: guesses checked, guesses right, their share, and steps saved.

    A step brings one token of an answer without guesses, and one more per right guess: each right guess saves a step.
    """
    drafted, accepted = counts.get("drafted", 0), counts.get("accepted", 0)
    rate = accepted / drafted if drafted else 0.0
    return {"drafted": drafted, "accepted": accepted, "acceptance_rate": rate, "steps_saved": accepted}


@dataclass(frozen=True)
class Parts:
    """What a drafter may know when a request starts: the number of ids there are."""

    vocab_size: int


@dataclass(frozen=True)
class DraftConfig(TechniqueConfig):
    """Base of the configs of drafters.

    k      tokens that a draft holds at most; 0 is off
    usual  fields that a caller gets who names the drafter and nothing else
    """

    usual: ClassVar[Mapping[str, Any]] = MappingProxyType({"k": 8})
    k: int = option(0, Whole(low=0, high=MAX_UNITS))

    @property
    def is_null(self) -> bool:
        """Without a token there is no draft, whatever the other fields say."""
        return self.k == 0
