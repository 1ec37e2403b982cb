"""The embed pipeline: an encoder reads whole texts, several a step, and each becomes one vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vivace.engine.batch import Batch, Event, Lane, Outcome
from vivace.engine.job import Job
from vivace.errors import StepFailed
from vivace.kernels.ops import Ops
from vivace.layers.context import Context
from vivace.models.base import Encoder
from vivace.pipelines.base import OnReply, StepPipeline, final_reply
from vivace.pipelines.checks import Limits, check_embed
from vivace.pipelines.pooling import Dense, Pooler, Pooling
from vivace.pipelines.requests import EmbedRequest, Reply, Usage, Vector
from vivace.pipelines.rows import build_rows
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
    """

    def __init__(
        self,
        model: Encoder,
        ops: Ops,
        *,
        name: str,
        sentence: SentenceConfig | None = None,
        dense: Sequence[Dense] = (),
        device: torch.device | str = "cpu",
    ) -> None:
        self.model = model
        self.ops = ops
        self.device = torch.device(device)
        self.pooling = Pooling(sentence or SentenceConfig(), model.hidden_size, dense)
        self.limits = Limits(model.vocab_size, model.context_length)
        self._lane = Lane(name, can_share=False)

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
            payload=text,
            sink=text.on_event,
        )

    def step(self, batch: Batch) -> list[Outcome]:
        texts: list[Text] = [span.job.payload for span in batch.spans]
        rows = build_rows(batch.spans, (), [0] * len(texts)).tensors(self.device)
        ctx = Context(self.ops, rows)
        ids = self._packed([text.request.ids for text in texts])
        types = self._packed([text.request.token_types or (0,) * len(text.request.ids) for text in texts])
        hidden = self.model.forward(ids, types, ctx)  # (rows, hidden)
        outcomes = []
        for index, text in enumerate(texts):
            own = hidden[rows.starts[index] : rows.starts[index + 1]]
            vector = text.pooler(own, text.request.skip, ctx)
            if not bool(vector.isfinite().all()):
                raise StepFailed("the vector of a text holds values that are no numbers")
            data = vector.numpy(force=True).astype("<f4").tobytes()
            outcomes.append(Outcome(len(text.request.ids), finished="stop", output=Vector(data)))
        return outcomes

    def _packed(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        return torch.from_numpy(np.concatenate([np.asarray(ids, np.int64) for ids in sequences])).to(self.device)
