"""Seeded schedules on tiny trained models in `rows` operations: every result is bitwise that of the undisturbed run.

Batch, chunk, page size, prefix hit and miss, forced preemption, cancelled and failing neighbours; token ids, logits,
log-probabilities, usage and page accounting. Llama (one page group) and Gemma 3 (two, with a sliding window).
"""

from __future__ import annotations

import logging
from collections import Counter

import torch

from tests.identities.world import PAGE_SIZES, World, run_schedule
from tests.proof import Proof

EVENTS = (
    "steps with neighbours", "mixed steps", "cut chunks", "preemptions", "cancelled neighbours", "failed steps",
    "schedules with prefix hits", "schedules with prefix misses", "schedules with windows",
)  # fmt: skip


def main() -> None:
    with Proof("identities", __doc__) as proof:
        torch.set_num_threads(1)
        logging.disable(logging.WARNING)  # the planted faults
        schedules = 300 if proof.is_full else 40
        minimum = 50 if proof.is_full else 5
        seen: Counter[str] = Counter()
        worlds = [World("tiny-llama"), World("tiny-gemma3")]
        different = []
        for seed in range(schedules):
            try:
                run_schedule(worlds[seed % 2], seed, seen)
            except AssertionError as error:
                different.append(str(error))
        for line in different[:10]:
            proof.say(f"  {line}")
        proof.demand(not different, f"{schedules} schedules, {seen['requests']} requests: {len(different)} differ")
        for event in EVENTS:
            proof.demand(seen[event] >= minimum, f"{seen[event]} {event}")
        for size in PAGE_SIZES:
            proof.demand(seen[f"page size {size}"] > 0, f"{seen[f'page size {size}']} schedules with page size {size}")


if __name__ == "__main__":
    main()
