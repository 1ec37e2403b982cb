"""Where the time of a step goes: planning, rows, the forward pass by operation, the head, sampling, accepting, replies.

    with StepsProfile(engine, "smollm2") as profile:
        ...                                   # any work through the engine
    profile.mean(jobs=16, rows=16)            # stage -> microseconds in a step of 16 decoding jobs

The engine's loop is one thread, so one clock is enough: every wrapped call switches it to another stage and back, and
each nanosecond between two plans belongs to exactly one stage. Wrapping costs about a microsecond a call. A stage
that ends in ":" is the Python between the wrapped calls.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import wraps
from time import perf_counter_ns
from typing import Any, Self

from vivace.api.engine import Engine


@dataclass(eq=False)
class Step:
    """One step: how many jobs and rows it had, and nanoseconds by stage."""

    jobs: int = 0
    rows: int = 0
    stages: dict[str, int] = field(default_factory=lambda: defaultdict(int))


class Clock:
    """One running stage at a time; time is added to the stage that ran."""

    def __init__(self) -> None:
        self.step = Step()
        self.stage = "idle"
        self._since = perf_counter_ns()

    def switch(self, stage: str) -> None:
        """From now on time belongs to `stage`."""
        now = perf_counter_ns()
        self.step.stages[self.stage] += now - self._since
        self.stage, self._since = stage, now


class StepsProfile:
    """Watches the loop of an engine while the block runs, and keeps every step."""

    def __init__(self, engine: Engine, model: str) -> None:
        self.steps: list[Step] = []
        self._clock = Clock()
        self._engine = engine
        self._pipeline: Any = engine.pipelines[model]
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        scheduler: Any = self._engine.loop.scheduler
        self._wrap(scheduler, "plan", "plan", before=self._begin_step, after=self._count_spans)
        self._wrap(scheduler, "accept", "accept", then="replies")
        pipeline = self._pipeline
        self._wrap(pipeline, "step", "rows", then="accept")
        self._wrap(pipeline.model.ropes, "angles", "rope tables")
        self._wrap(pipeline.model, "forward", "layers:")
        self._wrap(pipeline.model, "logits", "head:", then="sampling")
        if pipeline.replay is not None:
            self._watch_tape(pipeline.replay.tape)
        for op in self._engine.ops.bound:
            self._wrap(self._engine.ops, op, op)
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def mean(self, jobs: int, rows: int) -> dict[str, float]:
        """Mean microseconds by stage over the steps of that many jobs and rows; empty if there was none.

        The slower half of the steps is left out: what other programs take from the processor is no part of a step.
        """
        found = [step.stages for step in self.steps if (step.jobs, step.rows) == (jobs, rows)]
        chosen = sorted(found, key=lambda stages: sum(stages.values()))[: (len(found) + 1) // 2]
        names = dict.fromkeys(name for stages in chosen for name in stages)
        return {name: sum(stages.get(name, 0) for stages in chosen) / len(chosen) / 1e3 for name in names}

    def _wrap(
        self,
        owner: Any,
        name: str,
        stage: str,
        *,
        then: str | None = None,
        before: Callable[[], None] | None = None,
        after: Callable[[Any], None] | None = None,
    ) -> None:
        """Let calls of owner.name run in `stage`, and what follows in `then`, else in the stage that was before."""
        call, clock = getattr(owner, name), self._clock
        was_own = name in vars(owner)

        @wraps(call)
        def timed(*arguments: Any, **named: Any) -> Any:
            if before is not None:
                before()
            caller = clock.stage
            clock.switch(f"head {stage}" if caller.startswith("head") and not stage.endswith(":") else stage)
            try:
                result = call(*arguments, **named)
            finally:
                clock.switch(then or caller)
            if after is not None:
                after(result)
            return result

        object.__setattr__(owner, name, timed)  # a model is a frozen dataclass
        if was_own:
            self._undo.callback(object.__setattr__, owner, name, call)
        else:
            self._undo.callback(object.__delattr__, owner, name)

    def _watch_tape(self, tape: Any) -> None:
        """Divide the time of a recorded step among its calls; what is left is the tape's own."""

        def timed(*counts: int) -> None:
            clock, part = self._clock, ""
            clock.switch("tape:")
            for function, time in tape.run_timed(*counts):
                part = "head " if function == "take_rows" else part
                clock.step.stages[part + function] += time
                clock.step.stages["tape:"] -= time
            clock.switch("sampling")

        tape.run = timed
        self._undo.callback(delattr, tape, "run")

    def _begin_step(self) -> None:
        self._clock.switch("plan")
        if self._clock.step.rows:
            self.steps.append(self._clock.step)
        self._clock.step = Step()

    def _count_spans(self, batch: Any) -> None:
        if batch is not None:
            self._clock.step.jobs = len(batch.spans)
            self._clock.step.rows = sum(span.count for span in batch.spans)
