"""The embed pipeline: an encoder reads whole texts, several a step, and each becomes one vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from vivace.config import EngineConfig
from vivace.engine.batch import Batch, Event, Lane, Outcome, Span
from vivace.engine.job import Job
from vivace.errors import StepFailed
from vivace.kernels.ops import Ops
from vivace.layers.context import Context
from vivace.models.base import Encoder
from vivace.pipelines.base import OnReply, StepPipeline, final_reply
from vivace.pipelines.checks import Limits, check_embed
from vivace.pipelines.encoder_replay import EncoderStep, try_encoder_replay
from vivace.pipelines.pooling import Dense, Pooler, Pooling
from vivace.pipelines.requests import EmbedRequest, Reply, Usage, Vector
from vivace.pipelines.rows import Ints, RowArrays, build_rows, keys_of, span_ids
from vivace.pipelines.sentence import SentenceConfig


@dataclass(frozen=True, eq=False)
class Text:
    """An embed job's payload and sink."""

    request: EmbedRequest
    pooler: Pooler
    on_reply: OnReply

    def on_event(self, event: Event) -> None:
        """Tell the client: there is one reply, the last."""
        usage = Usage(prompt=len(self.request.ids))
        if event.finished is None and event.error is None:
            self.on_reply(Reply(event.output, usage=usage))
            return
        last = final_reply(event, usage)
        self.on_reply(Reply(event.output, last.finished, None, usage, last.error))


class EmbedPipeline(StepPipeline):
    """One encoder in one lane. A text is a block: no span cuts it, because each token sees all others.

    name      name of the lane
    sentence  what the model's folder says about pooling (pipelines.sentence)
    dense     the layers of its Dense modules (pipelines.pooling.load_dense)
    config    step_budget, max_jobs and replay are read

    `replay` is the model's recorded step, None where it is off, or where operations are not native.
    """

    def __init__(
        self,
        model: Encoder,
        ops: Ops,
        *,
        name: str,
        sentence: SentenceConfig | None = None,
        dense: Sequence[Dense] = (),
        config: EngineConfig | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.model = model
        self.ops = ops
        self.device = torch.device(device)
        self.pooling = Pooling(sentence or SentenceConfig(), model.hidden_size, dense)
        self.limits = Limits(model.vocab_size, model.context_length)
        self._lane = Lane(name, can_share=False)
        config = config or EngineConfig()
        texts, rows = config.max_jobs, config.step_budget
        self.replay = try_encoder_replay(model, ops, key=name, rows=rows, texts=texts) if config.replay else None

    @property
    def lane(self) -> Lane:
        return self._lane

    def check(self, request: EmbedRequest) -> None:
        """Raises InvalidRequest, UnknownName or ContextLengthExceeded for a request that cannot be served."""
        check_embed(request, self.limits)
        self.pooling.pooler(request)

    def make_job(self, request: EmbedRequest, job_id: int, on_reply: OnReply) -> Job:
        """A job for the scheduler. Raises like `check`. `on_reply` is called from the loop's thread."""
        check_embed(request, self.limits)
        count = len(request.ids)
        text = Text(request, self.pooling.pooler(request), on_reply)
        return Job(
            id=job_id,
            lane=self._lane.name,
            goal=count,
            limit=count,
            priority=request.priority,
            tenant=request.tenant,
            blocks=((0, count),),
            keys=keys_of(request.ids),
            payload=text,
            sink=text.on_event,
        )

    def step(self, batch: Batch) -> list[Outcome]:
        texts: list[Text] = [span.job.payload for span in batch.spans]
        lengths = [span.count for span in batch.spans]
        if self.replay is None or not self.replay.can_run(sum(lengths), len(texts)):
            step = _step_of(batch.spans)
            ctx = Context(self.ops, step.rows.tensors(self.device))
            hidden = self.model.forward(self._tensor(step.ids), self._tensor(step.token_types), ctx)  # (rows, hidden)
            vectors = self._vectors(texts, step.rows, {"hidden": hidden})
            return [_outcome(text, vector) for text, vector in zip(texts, vectors, strict=True)]
        outcomes: dict[int, Outcome] = {}
        parts = self.replay.cut(lengths)
        steps = [_step_of([batch.spans[place] for place in part]) for part in parts]
        for part, step, results in zip(parts, steps, self.replay.run(steps), strict=True):
            some = [texts[place] for place in part]
            vectors = self._vectors(some, step.rows, results)
            outcomes |= zip(part, map(_outcome, some, vectors), strict=True)
        return [outcomes[place] for place in range(len(texts))]

    def _vectors(self, texts: Sequence[Text], rows: RowArrays, results: Mapping[str, Tensor]) -> list[Ints]:
        """One vector per text, from the recorded step where it computed the same, else from the hidden states."""
        names, hidden = {text.pooler.recorded for text in texts}, results["hidden"]
        known = {name: results[name].numpy() for name in names if name in results}
        starts, ctx, vectors = rows.starts.tolist(), None, []
        for index, text in enumerate(texts):
            if text.pooler.recorded in known:
                vectors.append(known[text.pooler.recorded][index])
                continue
            ctx = ctx or Context(self.ops, rows.tensors(self.device))
            vector = text.pooler(hidden[starts[index] : starts[index + 1]], text.request.skip, ctx)
            vectors.append(vector.numpy(force=True))
        return vectors

    def _tensor(self, numbers: Ints) -> Tensor:
        return torch.from_numpy(numbers).to(self.device)


def _step_of(spans: Sequence[Span]) -> EncoderStep:
    """The rows of some texts."""
    requests = [span.job.payload.request for span in spans]
    types = np.zeros(sum(span.count for span in spans), np.int64)
    if any(request.token_types for request in requests):
        whole = [request.token_types or (0,) * len(request.ids) for request in requests]
        types = np.fromiter(chain.from_iterable(whole), np.int64)
    rows = build_rows(spans, (), [0] * len(spans))
    return EncoderStep(span_ids(spans), types, rows, [request.skip for request in requests])


def _outcome(text: Text, vector: Ints) -> Outcome:
    if not np.isfinite(vector).all():
        raise StepFailed("the vector of a text holds values that are no numbers")
    return Outcome(len(text.request.ids), finished="stop", output=Vector(vector.astype("<f4").tobytes()))
