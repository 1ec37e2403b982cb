"""The state of a generate job: fixed by its request, changed by accepted outputs only, told to its client.

A step reads it and never writes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from vivace.engine.batch import Event
from vivace.engine.job import Job
from vivace.pipelines.base import OnReply, final_reply
from vivace.pipelines.requests import GenerateRequest, Reply, TokenLogprob, Tokens, Usage
from vivace.pipelines.sampler import Sampler
from vivace.techniques.speculation.base import EMPTY, Drafter, DraftTree


@dataclass(frozen=True)
class SpanOutput:
    """What a span of a generate job found.

    ids, logprobs    tokens of the answer: none after a chunk of the prompt, or when an end id was drawn
    prompt_logprobs  of the prompt tokens that its rows predict and that were not accepted before
    is_draw          whether the span reached the end of what is known, so that the answer went on or ended
    stop_id          the end id that was drawn
    draft            guesses for the next step
    drafted          guesses that this step checked
    accepted         how many of them were right
    """

    ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    is_draw: bool = False
    stop_id: int | None = None
    draft: DraftTree = EMPTY
    drafted: int = 0
    accepted: int = 0


@dataclass(eq=False)
class Answer:
    """A generate job's payload and sink.

    max_tokens       tokens the answer may have
    end_ids          ids that end it
    variant          rotary table of the job
    generated        accepted tokens of the answer
    cached           prompt tokens that came from the prefix cache when the job was first admitted
    prompt_logprobs  accepted so far; they are told once, with the first tokens
    drafter          guesses what comes next; None: nobody does
    draft            guesses that stand below the last known token: they are units of the job, but not known ones
    drafted          guesses that were checked
    accepted         those that were right
    """

    request: GenerateRequest
    sampler: Sampler
    max_tokens: int
    end_ids: frozenset[int]
    variant: int
    on_reply: OnReply
    drafter: Drafter | None = None
    draft: DraftTree = EMPTY
    drafted: int = 0
    accepted: int = 0
    generated: int = 0
    cached: int | None = None
    stop_id: int | None = None
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    told_prompt: bool = False

    def unscored(self, start: int, stop: int) -> range:
        """Prompt tokens that rows start .. stop predict and whose log-probabilities are still wanted."""
        if self.request.prompt_logprobs is None:
            return range(0)
        return range(max(start, len(self.prompt_logprobs)) + 1, min(stop + 1, len(self.request.ids)))

    def on_event(self, event: Event) -> None:
        """Take an accepted output or the end, and tell the client."""
        output = self._accept(event.job, event.output) if event.output is not None else None
        if event.finished is None and event.error is None:
            if output is not None:
                self.on_reply(Reply(output, usage=self._usage()))
            return
        last = final_reply(event, self._usage(), self.stop_id)
        self.on_reply(Reply(output, last.finished, last.stop_id, last.usage, last.error))

    def _accept(self, job: Job, found: SpanOutput) -> Tokens | None:
        if self.cached is None:
            self.cached = min(job.cached, len(self.request.ids))
        self.generated += len(found.ids)
        self.stop_id = found.stop_id
        self.drafted += found.drafted
        self.accepted += found.accepted
        self.prompt_logprobs.extend(found.prompt_logprobs)
        if not found.is_draw:
            return None
        self.draft = found.draft
        prompt = () if self.told_prompt else tuple(self.prompt_logprobs)
        self.told_prompt = True
        return Tokens(found.ids, found.logprobs, prompt) if found.ids or prompt else None

    def _usage(self) -> Usage:
        rejected = self.drafted - self.accepted
        return Usage(len(self.request.ids), self.generated, self.cached or 0, self.accepted, rejected)
