"""What all pipelines share: a step that is computed at launch, its ticket, and how events of a job become replies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from vivace.engine.batch import Batch, Event, Lane, Outcome
from vivace.engine.job import Job
from vivace.errors import Cancelled
from vivace.pipelines.requests import Reply, Usage, described

OnReply = Callable[[Reply], None]


@dataclass(frozen=True)
class Computed:
    """The ticket of a step that is over: its outcomes, or what it raised."""

    found: Sequence[Outcome] = ()
    error: Exception | None = None

    def outcomes(self) -> Sequence[Outcome]:
        """One outcome per span, in the batch's order. Raises what the step raised."""
        if self.error is not None:
            raise self.error
        return self.found


class StepPipeline(ABC):
    """A pipeline that computes a step when it is launched, in the caller's thread. It satisfies engine.batch.Pipeline.

    A step changes nothing but pages that its spans own: what a job has so far changes only when its sink is told that
    an outcome was accepted. So the same spans may be launched again, together or apart.
    """

    @property
    @abstractmethod
    def lane(self) -> Lane:
        """What the scheduler plans with."""

    @abstractmethod
    def step(self, batch: Batch) -> list[Outcome]:
        """Compute the batch: one outcome per span."""

    def launch(self, batch: Batch) -> Computed:
        """Compute the batch; an error waits in the ticket for whoever asks for the outcomes."""
        try:
            with torch.inference_mode():
                return Computed(self.step(batch))
        except Exception as error:
            return Computed(error=error)

    def fallback(self, job: Job) -> int:
        """A preempted job starts again: its pages are gone, and recomputed units are equal bit for bit."""
        return 0

    def release(self, job: Job) -> None:
        """Drop what belongs to the job; its sink keeps what the last reply needs."""
        job.payload = None


def final_reply(event: Event, usage: Usage, stop_id: int | None = None) -> Reply:
    """The last reply about a request, from the event that ends its job."""
    if isinstance(event.error, Cancelled) or (event.error is None and event.finished == "cancelled"):
        return Reply(finished="cancelled", usage=usage)
    if event.error is not None:
        return Reply(finished="error", usage=usage, error=described(event.error))
    return Reply(finished=event.finished, stop_id=stop_id, usage=usage)
