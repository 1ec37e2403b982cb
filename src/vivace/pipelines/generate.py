"""The generate pipeline: prompts are read in chunks, answers grow by one token a step, all jobs of a step together."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from vivace.config import EngineConfig
from vivace.engine.batch import Batch, Lane, Outcome, PageCopy, Span
from vivace.engine.job import Job
from vivace.kernels.ops import KVStore, Ops
from vivace.layers.context import Context
from vivace.layers.state import make_stores
from vivace.models.base import Decoder
from vivace.pipelines.answer import Answer, SpanOutput
from vivace.pipelines.base import OnReply, StepPipeline
from vivace.pipelines.checks import Limits, answer_length, check_generate
from vivace.pipelines.logprobs import token_logprob
from vivace.pipelines.memory import longest_job, page_counts
from vivace.pipelines.requests import GenerateRequest, TokenLogprob
from vivace.pipelines.rows import KEY_BYTES, build_rows, ids_of, keys_of, span_ids
from vivace.pipelines.sampler import Sampler
from vivace.techniques.sampling.base import History, Parts

SLICE_SCORES = 1 << 24  # scores computed at once: 64 MB, whatever the vocabulary


class GeneratePipeline(StepPipeline):
    """One decoder in one lane.

    name     name of the lane
    end_ids  ids that end an answer, as the model's files say
    digest   of the weights: part of what prefixes are shared under
    config   resolved; kv_bytes, page_size, max_length, step_budget, max_jobs and prefix_cache are read

    Raises ConfigError when the memory holds no job.
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
        store_format: str = "f32",
    ) -> None:
        self.model = model
        self.ops = ops
        self.device = torch.device(device)
        self._groups = model.page_groups(config.page_size, store_format)
        pages = page_counts(self._groups, config)
        max_length = longest_job(self._groups, pages, config, model.context_length)
        self.limits = Limits(model.vocab_size, max_length, tuple(sorted(set(end_ids))))
        self._lane = Lane(name, self._groups, pages, KEY_BYTES, can_share=config.prefix_cache)
        self._stores = make_stores(model.layout, pages, config.page_size, store_format, self.device)
        self._making = threading.Lock()  # jobs are made in the threads of clients; rotary tables grow as they come
        self._identity = f"{digest}|no adapter|{store_format}|{config.activations}"

    @property
    def lane(self) -> Lane:
        return self._lane

    @property
    def stores(self) -> tuple[KVStore, ...]:
        """The key-value store of each layer."""
        return self._stores

    def check(self, request: GenerateRequest) -> None:
        """Raises InvalidRequest, UnknownName or ContextLengthExceeded for a request that cannot be served."""
        check_generate(request, self.limits)
        self._sampler(request)

    def make_job(self, request: GenerateRequest, job_id: int, on_reply: OnReply) -> Job:
        """A job for the scheduler. Raises like `check`. `on_reply` is called from the loop's thread, in order."""
        check_generate(request, self.limits)
        max_tokens = answer_length(request, self.limits)
        prompt = len(request.ids)
        with self._making:
            variant = self.model.ropes.variant(prompt + max_tokens)
        answer = Answer(
            request, self._sampler(request), max_tokens, frozenset(self._end_ids(request)), variant, on_reply
        )
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

    def step(self, batch: Batch) -> list[Outcome]:
        self._copy(batch.copies)
        spans = batch.spans
        rows = build_rows(spans, self._groups, [span.job.payload.variant for span in spans], self.device)
        angles = self.model.ropes.angles(rows.position, rows.variant, self.ops)
        ctx = Context(self.ops, rows, self._stores, angles)
        hidden = self.model.forward(span_ids(spans, self.device), ctx)  # (rows, hidden)
        prompt_logprobs = self._score_prompts(spans, hidden, ctx)
        drawing = [index for index, span in enumerate(spans) if _is_draw(span)]
        last_rows = [rows.starts[index + 1] - 1 for index in drawing]
        outcomes = [
            Outcome(span.job.goal, output=SpanOutput(prompt_logprobs=tuple(scored)))
            for span, scored in zip(spans, prompt_logprobs, strict=True)
        ]
        for index, logits in zip(drawing, self._logits(hidden, last_rows, ctx), strict=True):
            outcomes[index] = _draw(spans[index].job, logits, outcomes[index].output)
        return outcomes

    def _copy(self, copies: Sequence[PageCopy]) -> None:
        for group in {copy.group for copy in copies}:
            mine = [copy for copy in copies if copy.group == group]
            sources = torch.tensor([copy.source for copy in mine], dtype=torch.int64, device=self.device)
            targets = torch.tensor([copy.target for copy in mine], dtype=torch.int64, device=self.device)
            for layer, store in zip(self.model.layout, self._stores, strict=True):
                if layer.group == group:
                    self.ops.kv_copy(store, sources, targets)

    def _logits(self, hidden: Tensor, rows: Sequence[int], ctx: Context) -> Iterator[Tensor]:
        """Scores (vocab,) float32 after each of the rows, a bounded number of rows at once."""
        size = max(1, SLICE_SCORES // self.model.vocab_size)
        for first in range(0, len(rows), size):
            chosen = torch.tensor(rows[first : first + size], dtype=torch.int64, device=self.device)
            yield from self.model.logits(hidden[chosen], ctx)

    def _score_prompts(self, spans: Sequence[Span], hidden: Tensor, ctx: Context) -> list[list[TokenLogprob]]:
        """Per span, the log-probabilities of the prompt tokens that its rows predict, where they are asked for."""
        found: list[list[TokenLogprob]] = []
        for index, span in enumerate(spans):
            answer = span.job.payload
            tokens = answer.unscored(span.start, span.start + span.count)
            first = ctx.rows.starts[index] - span.start - 1  # token t is predicted by the row of unit t - 1
            scores = self._logits(hidden, [first + token for token in tokens], ctx)
            ids, top = answer.request.ids, answer.request.prompt_logprobs
            found.append([token_logprob(row, ids[token], top) for token, row in zip(tokens, scores, strict=True)])
        return found

    def _sampler(self, request: GenerateRequest) -> Sampler:
        sampling = dict(request.sampling)
        if request.min_tokens:
            sampling["min_tokens"] = {"value": request.min_tokens}
        return Sampler(sampling, Parts(self.limits.vocab_size, self._end_ids(request)), request.seed)

    def _end_ids(self, request: GenerateRequest) -> tuple[int, ...]:
        return request.stop_ids if request.ignore_eos else request.stop_ids + self.limits.end_ids

    def _root(self, request: GenerateRequest, variant: int, job_id: int) -> bytes:
        """What prefixes are shared under. A job that scores its prompt has to compute it: it shares with nobody."""
        alone = "" if request.prompt_logprobs is None else f"job {job_id}"
        parts = (self._identity, f"rope {variant}", alone, request.tenant)
        return hashlib.sha256("|".join(parts).encode()).digest()


def _is_draw(span: Span) -> bool:
    """Whether the span reaches the end of what is known of the job, so that the next token is wanted."""
    return (span.start + span.count) * KEY_BYTES == len(span.job.keys)


def _draw(job: Job, logits: Tensor, found: SpanOutput) -> Outcome:
    """The next token of a job, or its end. logits (vocab,)."""
    answer: Answer = job.payload
    prompt, known = len(answer.request.ids), len(job.keys) // KEY_BYTES
    if answer.max_tokens == 0:
        return Outcome(job.goal, finished="length", output=replace(found, is_draw=True))
    token = answer.sampler.draw(logits, lambda: History(torch.from_numpy(ids_of(job)), prompt), known)
    if token in answer.end_ids:
        return Outcome(job.goal, finished="stop", output=replace(found, is_draw=True, stop_id=token))
    top = answer.request.logprobs
    logprobs = () if top is None else (token_logprob(logits, token, top),)
    output = replace(found, ids=(token,), logprobs=logprobs, is_draw=True)
    if known - prompt + 1 == answer.max_tokens:
        return Outcome(job.goal, finished="length", output=output)
    return Outcome(known + 1, keys=bytes(keys_of((token,))), output=output)
