"""Seeded schedules on tiny trained models: every result is bitwise that of the undisturbed run.

In the reference's `rows` operations and, where they are built, in the native ones with fp32, fp16 and int8 pages.
Batch, chunk, page size, prefix hit and miss, forced preemption, cancelled and failing neighbours; token ids, logits,
log-probabilities, usage and page accounting. Llama (one page group) and Gemma 3 (two, with a sliding window).
"""

from __future__ import annotations

import logging
from collections import Counter

import torch

from tests.identities.world import PAGE_SIZES, World, run_schedule
from tests.proof import Proof
from vivace.config import KernelChoice, KVFormat
from vivace.kernels.cpu.bind import why_missing

EVENTS = (
    "steps with neighbours", "mixed steps", "cut chunks", "preemptions", "cancelled neighbours", "failed steps",
    "schedules with prefix hits", "schedules with prefix misses", "schedules with windows",
)  # fmt: skip


def main() -> None:
    with Proof("identities", __doc__) as proof:
        torch.set_num_threads(1)
        logging.disable(logging.WARNING)  # the planted faults
        check(proof, "rows", "f32")
        if why_missing() is None:
            for kv_format in ("f32", "f16", "i8"):
                check(proof, "native", kv_format)
        else:
            proof.say(f"native kernels left out: {why_missing()}")


def check(proof: Proof, kernels: KernelChoice, kv_format: KVFormat) -> None:
    """Run the schedules on one set of operations and demand that enough of everything happened."""
    schedules, minimum = (300, 50) if proof.is_full else (30, 3)
    seen: Counter[str] = Counter()
    worlds = [World(asset, kernels, kv_format) for asset in ("tiny-llama", "tiny-gemma3")]
    different = []
    for seed in range(schedules):
        try:
            run_schedule(worlds[seed % 2], seed, seen)
        except AssertionError as error:
            different.append(str(error))
    for line in different[:10]:
        proof.say(f"  {line}")
    proof.say(f"operations {kernels}, KV pages {kv_format}:")
    proof.demand(not different, f"{schedules} schedules, {seen['requests']} requests: {len(different)} differ")
    for event in EVENTS:
        proof.demand(seen[event] >= minimum, f"{seen[event]} {event}")
    if kernels == "native":
        replayed = seen["replayed steps"]
        proof.demand(
            replayed == seen["steps"], f"{replayed} of {seen['steps']} steps replayed, none of the undisturbed"
        )
    sizes = ", ".join(f"{size}: {seen[f'page size {size}']}" for size in PAGE_SIZES)
    proof.demand(all(seen[f"page size {size}"] for size in PAGE_SIZES), f"schedules by page size {sizes}")


if __name__ == "__main__":
    main()
