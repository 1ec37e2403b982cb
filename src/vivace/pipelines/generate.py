"""The generate pipeline: prompts are read in chunks, answers grow token by token, all jobs of a step together.

The units of a job are its known tokens, then the guesses of its draft: a span that goes beyond the known tokens ends
with rows that `pipelines.verify` checks. Without a draft that is one row and one token a step.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vivace.config import EngineConfig
from vivace.engine.batch import Batch, Lane, Outcome, PageCopy, Span
from vivace.engine.job import Job
from vivace.kernels.ops import KVStore, Ops
from vivace.kernels.select import BoundOps
from vivace.kernels.tape import CHOSEN, ROWS, SEQUENCES
from vivace.layers.context import Context
from vivace.layers.precision import formats_text
from vivace.layers.state import make_stores
from vivace.models.base import Decoder
from vivace.pipelines.answer import Answer, SpanOutput
from vivace.pipelines.base import OnReply, StepPipeline
from vivace.pipelines.checks import Limits, answer_length, check_generate
from vivace.pipelines.costs import measure_costs, saved_costs
from vivace.pipelines.drafts import drop_draft, granted_draft, make_drafter, next_draft
from vivace.pipelines.logprobs import token_logprob
from vivace.pipelines.memory import longest_job, page_counts
from vivace.pipelines.replay import DecoderReplay, try_replay
from vivace.pipelines.requests import GenerateRequest, TokenLogprob
from vivace.pipelines.rows import KEY_BYTES, RowArrays, build_rows, keys_of, known_of, span_ids
from vivace.pipelines.sampler import Sampler, Scored
from vivace.pipelines.verify import Run, verify
from vivace.techniques.index import SPECULATION, with_usual
from vivace.techniques.sampling.base import Parts
from vivace.techniques.speculation.base import EMPTY, Drafter, DraftTree

SLICE_SCORES = 1 << 24  # scores computed at once: 64 MB, whatever the vocabulary


class GeneratePipeline(StepPipeline):
    """One decoder in one lane.

    name     name of the lane
    end_ids  ids that end an answer, as the model's files say
    digest   of the weights: part of what prefixes are shared under
    config   resolved; kv_bytes, page_size, max_length, step_budget, max_jobs, prefix_cache, replay, weights and
             speculation are read

    `replay` is the model's recorded step, None where it is off, or where operations are not native. Raises ConfigError
    when the memory holds no job, UnknownName for a drafter that does not exist.
    """

    def __init__(
        self,
        model: Decoder,
        ops: Ops,
        config: EngineConfig,
        *,
        name: str,
        end_ids: Sequence[int] = (),
        digest: str = "",
        device: torch.device | str = "cpu",
    ) -> None:
        self.model = model
        self.ops = ops
        self.device = torch.device(device)
        self._groups = model.page_groups(config.page_size, config.kv_format)
        pages = page_counts(self._groups, config)
        max_length = longest_job(self._groups, pages, config, model.context_length)
        is_cut = max_length < (config.max_length or model.context_length)
        self.limits = Limits(model.vocab_size, max_length, tuple(sorted(set(end_ids))), is_cut)
        self._lane = Lane(name, self._groups, pages, KEY_BYTES, can_share=config.prefix_cache)
        self._stores = make_stores(model.layout, pages, config.page_size, ops, config.kv_format)
        self._making = threading.Lock()  # jobs are made in the threads of clients; rotary tables grow as they come
        self._speculation = with_usual(SPECULATION, config.speculation)
        self._identity = f"{digest}|no adapter|{config.kv_format}|{config.weights}|{formats_text(model)}"
        self._head = Context(ops, build_rows((), (), ()).tensors(self.device))  # the head looks at no rows
        self.replay = self._record(config) if config.replay else None

    @property
    def lane(self) -> Lane:
        return self._lane

    @property
    def stores(self) -> tuple[KVStore, ...]:
        """The key-value store of each layer."""
        return self._stores

    def bound_gaps(self, folder: Path, machine: str, most_rows: int) -> None:
        """Tell the scheduler what steps take, so that it can bound them. To be called before the loop takes the lane.

        folder     where the cost table is kept
        machine    what the steps run on: another one has another table
        most_rows  of a step that is timed
        """
        key = f"{self._identity}|{machine}|{most_rows}|{self.limits.max_length}|{self.replay is not None}"
        path = folder / f"{hashlib.sha256(key.encode()).hexdigest()}.json"
        measure = partial(measure_costs, self._forward, self._groups, self.limits.max_length, most_rows)
        self._lane = replace(self._lane, costs=saved_costs(path, measure))

    def check(self, request: GenerateRequest) -> None:
        """Raises InvalidRequest, UnknownName or ContextLengthExceeded for a request that cannot be served."""
        check_generate(request, self.limits)
        self._sampler(request)
        self._drafter(request)

    def make_job(self, request: GenerateRequest, job_id: int, on_reply: OnReply) -> Job:
        """A job for the scheduler. Raises like `check`. `on_reply` is called from the loop's thread, in order."""
        check_generate(request, self.limits)
        max_tokens = answer_length(request, self.limits)
        prompt = len(request.ids)
        with self._making:
            variant = self.model.ropes.variant(prompt + max_tokens)
        sampler, end_ids = self._sampler(request), frozenset(self._end_ids(request))
        answer = Answer(request, sampler, max_tokens, end_ids, variant, on_reply, self._drafter(request))
        return Job(
            id=job_id,
            lane=self._lane.name,
            goal=prompt,
            limit=prompt + max(max_tokens - 1, 0),  # the last token is told, never read
            priority=request.priority,
            tenant=request.tenant,
            root=self._root(request, variant, job_id),
            keys=keys_of(request.ids),
            payload=answer,
            sink=answer.on_event,
        )

    def fallback(self, job: Job) -> int:
        """A preempted job starts again, with what is known of it: its guesses are dropped."""
        drop_draft(job)
        return super().fallback(job)

    def step(self, batch: Batch) -> list[Outcome]:
        self._copy(batch.copies)
        spans = batch.spans
        drafts = [granted_draft(span) for span in spans]
        rows = build_rows(spans, self._groups, [span.job.payload.variant for span in spans], drafts)
        drawing = _drawing(spans, drafts, rows.starts.tolist())
        hidden, scores = self._forward(span_ids(spans, drafts), rows, list(chain(*drawing.values())))
        outcomes: list[Outcome] = []
        moves: list[tuple[int, int]] = []
        for index, (span, draft) in enumerate(zip(spans, drafts, strict=True)):
            scored = self._score_prompt(span, hidden, int(rows.starts[index]))
            if index not in drawing:
                outcomes.append(Outcome(span.job.goal, output=SpanOutput(prompt_logprobs=scored)))
                continue
            _, *guesses = drawing[index]
            run = verify(span.job, draft, list(islice(scores, 1 + len(guesses))))
            outcomes.append(_outcome(span, draft, run, scored))
            moves += [(guesses[source], guesses[target]) for source, target in run.moves()]
        self._compact(moves, rows)
        return outcomes

    def _forward(
        self, ids: npt.NDArray[np.int64], rows: RowArrays, chosen: Sequence[int]
    ) -> tuple[Tensor, Iterator[Scored]]:
        """Hidden states of all rows, (rows, hidden), and scores after those chosen: by the tape where they fit it."""
        if self.replay is not None and self.replay.can_run(rows, len(chosen)):
            return self.replay.run(ids, rows, chosen)
        tensors = rows.tensors(self.device)
        angles = self.model.ropes.angles(tensors.position, tensors.variant, self.ops)
        ctx = Context(self.ops, tensors, self._stores, angles)
        hidden = self.model.forward(torch.from_numpy(ids).to(self.device), ctx)
        return hidden, self._scores(hidden, chosen)

    def _copy(self, copies: Sequence[PageCopy]) -> None:
        for group in {copy.group for copy in copies}:
            mine = [copy for copy in copies if copy.group == group]
            sources = torch.tensor([copy.source for copy in mine], dtype=torch.int64, device=self.device)
            targets = torch.tensor([copy.target for copy in mine], dtype=torch.int64, device=self.device)
            for layer, store in zip(self.model.layout, self._stores, strict=True):
                if layer.group == group:
                    self.ops.kv_copy(store, sources, targets)

    def _record(self, config: EngineConfig) -> DecoderReplay | None:
        """The model's step as a tape, for steps of any size that the configuration allows."""
        most_scores = max(1, SLICE_SCORES // self.model.vocab_size)
        capacity = {ROWS: config.step_budget, CHOSEN: min(config.step_budget, most_scores), SEQUENCES: config.max_jobs}
        pages = {group.name: -(-self.limits.max_length // group.page_size) for group in self._groups}
        return try_replay(
            self.model, self.ops, self._stores, self._groups, key=self._identity, capacity=capacity, pages=pages
        )

    def _compact(self, moves: Sequence[tuple[int, int]], rows: RowArrays) -> None:
        """Put keys and values of right guesses where a plain run would have them. moves: (from row, to row).

        Only units beyond what counts are written, so the step may still be run again.
        """
        if not moves:
            return
        for layer, store in zip(self.model.layout, self._stores, strict=True):
            sources, targets = torch.from_numpy(rows.slots[layer.group][np.array(moves)]).to(self.device).unbind(1)
            self.ops.kv_move(store, sources.contiguous(), targets.contiguous())

    def _scores(self, hidden: Tensor, chosen: Sequence[int]) -> Iterator[Scored]:
        """Scores after the chosen rows, a bounded number of rows at once."""
        size = max(1, SLICE_SCORES // self.model.vocab_size)
        for first in range(0, len(chosen), size):
            some = torch.tensor(chosen[first : first + size], dtype=torch.int64, device=self.device)
            scores = self.model.logits(self.ops.take_rows(hidden, some), self._head)
            yield from Scored.of(scores, self.ops.argmax(scores))

    def _score_prompt(self, span: Span, hidden: Tensor, first_row: int) -> tuple[TokenLogprob, ...]:
        """The log-probabilities of the prompt tokens that the span's rows predict, where they are asked for."""
        answer: Answer = span.job.payload
        ids, top = answer.request.ids, answer.request.prompt_logprobs
        if top is None:
            return ()
        tokens = answer.unscored(span.start, span.start + span.count)
        # Token t is predicted by the row of unit t - 1.
        scores = self._scores(hidden, [first_row + token - span.start - 1 for token in tokens])
        return tuple(token_logprob(after.row, ids[token], top) for token, after in zip(tokens, scores, strict=True))

    def _sampler(self, request: GenerateRequest) -> Sampler:
        sampling = dict(request.sampling)
        if request.min_tokens:
            sampling["min_tokens"] = {"value": request.min_tokens}
        is_fused = isinstance(self.ops, BoundOps) and self.ops.native is not None
        parts = Parts(self.limits.vocab_size, self._end_ids(request))
        return Sampler(sampling, parts, request.seed, self.ops if is_fused else None)

    def _drafter(self, request: GenerateRequest) -> Drafter | None:
        chosen = self._speculation if request.speculation is None else request.speculation
        return make_drafter(chosen, self.limits.vocab_size)

    def _end_ids(self, request: GenerateRequest) -> tuple[int, ...]:
        return request.stop_ids if request.ignore_eos else request.stop_ids + self.limits.end_ids

    def _root(self, request: GenerateRequest, variant: int, job_id: int) -> bytes:
        """What prefixes are shared under. A job that scores its prompt has to compute it: it shares with nobody."""
        alone = "" if request.prompt_logprobs is None else f"job {job_id}"
        parts = (self._identity, f"rope {variant}", alone, request.tenant)
        return hashlib.sha256("|".join(parts).encode()).digest()


def _drawing(spans: Sequence[Span], drafts: Sequence[DraftTree], starts: Sequence[int]) -> dict[int, range]:
    """Rows after which tokens are drawn, by the place of their span: the last known token's, then those of guesses."""
    stops = {index: starts[index + 1] for index, span in enumerate(spans) if _is_draw(span)}
    return {index: range(stop - len(drafts[index]) - 1, stop) for index, stop in stops.items()}


def _is_draw(span: Span) -> bool:
    """Whether the span reaches the end of what is known of the job, so that the next token is wanted."""
    return span.start + span.count >= known_of(span.job)


def _outcome(span: Span, draft: DraftTree, run: Run, scored: tuple[TokenLogprob, ...]) -> Outcome:
    """What a run of new tokens means for the job: known units and right guesses count, the rest is undone."""
    job, accepted = span.job, len(run.path)
    # The last token of a full answer is told, never read.
    kept = run.ids if run.finished is None else run.ids[:accepted]
    known = known_of(job) + len(kept)
    following = next_draft(job, run.ids, job.limit - known) if run.finished is None else EMPTY
    output = SpanOutput(
        ids=run.ids,
        logprobs=run.logprobs,
        prompt_logprobs=scored,
        is_draw=True,
        stop_id=run.stop_id,
        draft=following,
        drafted=len(draft),
        accepted=accepted,
    )
    return Outcome(
        job.goal if run.finished is not None else known + len(following),
        rollback=len(draft) - accepted,
        keys=bytes(keys_of(kept)),
        finished=run.finished,
        output=output,
        counts={"drafted": len(draft), "accepted": accepted} if draft else None,
    )
