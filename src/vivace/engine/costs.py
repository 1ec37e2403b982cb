"""What a step takes, from a table and never from a clock: so that no step holds up jobs that wait for every unit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepCosts:
    """The table of one lane, in integers of the pipeline's choice; all lanes of an engine use the same ones.

    step   of every step, whatever it holds
    span   of every span
    unit   of every unit
    reach  of a span for each unit before it
    past   of a unit for each unit before it
    """

    step: int
    span: int
    unit: int
    reach: int = 0
    past: int = 0

    def of_span(self, start: int, count: int) -> int:
        """What units start .. start + count of a job add to a step."""
        before = count * start + count * (count - 1) // 2
        return self.span + count * self.unit + start * self.reach + before * self.past

    def most_units(self, start: int, left: int) -> int:
        """The most units from `start` on that surely add no more than `left`; 0 if there are none."""
        left -= self.span + start * self.reach
        units = max(0, left) // max(1, self.unit + start * self.past)
        return max(0, left) // max(1, self.unit + (start + units // 2) * self.past)
