"""The worlds of `world.py` with drafters: whatever is guessed, every request must come out as its plain run did.

`NgramWorld` drafts from the text, as requests ask for it. `PlantedWorld` drafts random trees in which some paths are
the tokens that the plain run has drawn: branching, partly right and wholly wrong trees and moved keys really happen.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tests.identities.world import Result, World
from vivace.config import EngineConfig, KernelChoice, KVFormat
from vivace.engine.batch import Batch, Outcome
from vivace.engine.job import Job
from vivace.pipelines.base import OnReply
from vivace.pipelines.drafts import granted_draft
from vivace.pipelines.generate import GeneratePipeline
from vivace.pipelines.requests import GenerateRequest
from vivace.pipelines.rows import RowArrays, known_of
from vivace.techniques.speculation.base import EMPTY, ROOT, DraftTree

EVENTS = (
    "drafted", "accepted", "drafts wholly right", "drafts partly right", "drafts wholly wrong", "cut drafts",
    "drafts dropped by preemption",
)  # fmt: skip
TREE_EVENTS = ("trees that branch", "moved keys", "answers ended within a draft")


class CountingPipeline(GeneratePipeline):
    """A pipeline that counts what becomes of drafts. Steps that are run again count again."""

    seen: Counter[str]

    def step(self, batch: Batch) -> list[Outcome]:
        outcomes = super().step(batch)
        for span, outcome in zip(batch.spans, outcomes, strict=True):
            whole, granted = span.job.payload.draft, granted_draft(span)
            reached = span.start + span.count >= known_of(span.job)
            self.seen["cut drafts"] += reached and len(granted) < len(whole)
            if not granted or not outcome.output.is_draw:
                continue
            accepted, longest = outcome.output.accepted, max(granted.depths())
            self.seen["drafted"] += len(granted)
            self.seen["accepted"] += accepted
            self.seen["drafts wholly right"] += accepted == longest
            self.seen["drafts partly right"] += 0 < accepted < longest
            self.seen["drafts wholly wrong"] += accepted == 0
            self.seen["trees that branch"] += not granted.is_chain
            self.seen["answers ended within a draft"] += outcome.finished is not None and accepted > 0
        return outcomes

    def fallback(self, job: Job) -> int:
        self.seen["drafts dropped by preemption"] += len(job.payload.draft) > 0
        return super().fallback(job)

    def _compact(self, moves: Sequence[tuple[int, int]], rows: RowArrays) -> None:
        self.seen["moved keys"] += len(moves)
        super()._compact(moves, rows)


class NgramWorld(World):
    """All requests ask for n-gram speculation; `alone` holds what the same requests give without it."""

    pipeline_type: type[CountingPipeline] = CountingPipeline

    def __init__(
        self, asset: str, kernels: KernelChoice = "rows", kv_format: KVFormat = "f32", *, weights: Path | None = None
    ) -> None:
        super().__init__(asset, kernels, kv_format, weights=weights)
        self.seen: Counter[str] = Counter()
        self.plain = World(asset, kernels, kv_format, weights=weights)
        self.requests = [self.drafting(index, request) for index, request in enumerate(self.plain.requests)]

    def alone(self, index: int) -> Result:
        return self.plain.alone(index)

    def drafting(self, index: int, request: GenerateRequest) -> GenerateRequest:
        fields = {"k": (1, 3, 8, 20)[index % 4], "min_n": 1 + index % 2, "max_n": 2 + index % 3}
        return replace(request, speculation={"ngram": fields})

    def pipeline(self, config: EngineConfig) -> GeneratePipeline:
        made = self.pipeline_type(
            self.model, self.ops, config, name="tiny", end_ids=sorted(self.tokenizer.eos_ids), digest=self.asset
        )
        made.seen = self.seen
        return made


class PlantedDrafter:
    """Random trees with tokens of the plain run in some places. A function of the history, as the contract asks."""

    def __init__(self, text: Sequence[int], vocab_size: int, seed: int) -> None:
        self._text, self._vocab_size, self._seed = text, vocab_size, seed

    def propose(self, history: Any, room: int) -> DraftTree:
        count = len(history)
        assert np.array_equal(history, self._text[:count]), "the drafter was asked about another text"
        rng = random.Random(self._seed * 1000 + count)
        if rng.random() < 0.1:
            return EMPTY
        ids: list[int] = []
        parents: list[int] = []
        depths = {ROOT: 0}
        right = ROOT  # the deepest guess so far that lies on the right path
        share = rng.choice((0.3, 0.6, 0.95))
        for place in range(min(room, rng.randrange(1, 13))):
            parent = right if rng.random() < 0.7 else rng.randrange(ROOT, place)
            depths[place] = depths[parent] + 1
            follows = count + depths[place] - 1
            is_right = parent == right and follows < len(self._text) and rng.random() < share
            ids.append(self._text[follows] if is_right else rng.randrange(self._vocab_size))
            parents.append(parent)
            right = place if is_right else right
        return DraftTree(tuple(ids), tuple(parents))


class PlantedPipeline(CountingPipeline):
    """Gives each job a drafter that knows what the plain run said."""

    answers: dict[tuple[Any, ...], list[int]]

    def make_job(self, request: GenerateRequest, job_id: int, on_reply: OnReply) -> Job:
        job = super().make_job(request, job_id, on_reply)
        text = [*request.ids, *self.answers[_key(request)]]
        job.payload.drafter = PlantedDrafter(text, self.limits.vocab_size, job_id)
        return job


class PlantedWorld(NgramWorld):
    """Every job drafts trees that are right in part."""

    pipeline_type = PlantedPipeline

    @cached_property
    def answers(self) -> dict[tuple[Any, ...], list[int]]:
        return {_key(request): self.alone(index).ids for index, request in enumerate(self.requests)}

    def drafting(self, index: int, request: GenerateRequest) -> GenerateRequest:
        return request

    def pipeline(self, config: EngineConfig) -> GeneratePipeline:
        made = super().pipeline(config)
        assert isinstance(made, PlantedPipeline)
        made.answers = self.answers
        return made


def _key(request: GenerateRequest) -> tuple[Any, ...]:
    return request.ids, request.seed, request.max_tokens
