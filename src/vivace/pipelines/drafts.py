"""The drafts of generate jobs: who guesses, what of a draft a span was granted, and what is guessed next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vivace.engine.batch import Span
from vivace.engine.job import Job
from vivace.errors import InvalidRequest
from vivace.pipelines.answer import Answer
from vivace.pipelines.rows import ids_of, known_of
from vivace.techniques import index
from vivace.techniques.speculation.base import EMPTY, Drafter, DraftTree, Parts


def make_drafter(chosen: Mapping[str, Mapping[str, Any]], vocab_size: int) -> Drafter | None:
    """The drafter of one job, None if all that is chosen is off.

    Raises UnknownName or InvalidRequest for a choice that cannot be made.
    """
    configs = index.parse(index.SPECULATION, chosen)
    active = [config for config in configs.values() if not config.is_null]
    if len(active) > 1:
        names = " and ".join(config.name for config in active)
        raise InvalidRequest(f"speculation names {names}, expected one drafter", field="speculation")
    drafter: Drafter | None = index.make(active[0], Parts(vocab_size)) if active else None
    return drafter


def granted_draft(span: Span) -> DraftTree:
    """The guesses that a span ends with: of the job's draft as many as it goes beyond the known units."""
    answer: Answer = span.job.payload
    return answer.draft.first(max(0, span.start + span.count - known_of(span.job)))


def next_draft(job: Job, new: Sequence[int], room: int) -> DraftTree:
    """Guesses after the known tokens of a job and some new ones, at most `room`."""
    drafter: Drafter | None = job.payload.drafter
    if drafter is None or room < 1:
        return EMPTY
    draft = drafter.propose(np.concatenate([ids_of(job), np.array(new, np.int64)]), room)
    assert len(draft) <= room, f"a draft has {len(draft)} guesses, there is room for {room}"
    return draft


def drop_draft(job: Job) -> None:
    """Forget the guesses: the job has its known units to do and no others."""
    job.payload.draft = EMPTY
    job.goal = min(job.goal, known_of(job))
