"""Seeded schedules on tiny trained models: every result is bitwise that of the undisturbed run.

In the reference's `rows` operations; and in the native ones on every instruction set of this machine, on one thread and
on two, with dense and quantized weights, all formats of activations and of KV pages: there the undisturbed run is that
of the portable kernels on one thread, call by call, so logits are equal across instruction sets and threads too. Batch,
chunk, page size, prefix hit and miss, forced preemption, cancelled and failing neighbours; token ids, logits,
log-probabilities, usage and page accounting. Llama (one page group) and Gemma 3 (two, with a sliding window).
"""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from tests.identities import native
from tests.identities.world import PAGE_SIZES, World, run_schedule
from tests.proof import Proof
from vivace.kernels.cpu.bind import supported_isas, why_missing

EVENTS = (
    "steps with neighbours", "mixed steps", "cut chunks", "preemptions", "cancelled neighbours", "failed steps",
    "schedules with prefix hits", "schedules with prefix misses", "schedules with windows",
)  # fmt: skip


def main() -> None:
    with Proof("identities", __doc__) as proof:
        torch.set_num_threads(1)
        logging.disable(logging.WARNING)  # the planted faults
        check_rows(proof)
        if why_missing() is None:
            check_native(proof)
        else:
            proof.say(f"native kernels left out: {why_missing()}")


def check_rows(proof: Proof) -> None:
    """Run the schedules in the reference and demand that enough of everything happened."""
    schedules, minimum = (300, 50) if proof.is_full else (30, 3)
    seen: Counter[str] = Counter()
    worlds = [World(asset) for asset in native.ASSETS]
    different = []
    for seed in range(schedules):
        try:
            run_schedule(worlds[seed % 2], seed, seen)
        except AssertionError as error:
            different.append(str(error))
    proof.say("operations rows, KV pages f32:")
    compare(proof, f"{schedules} schedules, {seen['requests']} requests", different)
    for event in EVENTS:
        proof.demand(seen[event] >= minimum, f"{seen[event]} {event}")
    count_page_sizes(proof, seen)


def check_native(proof: Proof) -> None:
    """Run the schedules on each instruction set and demand that enough of everything happened."""
    schedules, minimum = (1000, 150) if proof.is_full else (50, 3)
    cases = native.cases()[:: 1 if proof.is_full else 5]
    seen = {isa: Counter[str]() for isa in supported_isas()}
    runs: Counter[tuple[str, int]] = Counter()
    different = []
    with TemporaryDirectory() as folder:
        for found in native.run_cases(cases, schedules, Path(folder)):
            for isa, counts in found.seen.items():
                seen[isa] += counts
            runs += found.runs
            different += found.different
    for name in ("weights", "activations", "kv_format"):
        proof.say(f"native, {name}: {', '.join(dict.fromkeys(getattr(case, name) for case in cases))}")
    claim = f"{schedules} schedules of {len(cases)} mixes on {len(seen)} instruction sets"
    compare(proof, f"{claim}, {sum(seen[isa]['requests'] for isa in seen)} requests", different)
    for isa in seen:
        threads = {count: runs[isa, count] for count in native.THREADS}
        is_even = sum(threads.values()) == schedules and min(threads.values()) >= schedules // 3
        words = ", ".join(f"{number} on {count} threads" for count, number in threads.items())
        proof.demand(is_even, f"{isa}: {schedules} schedules, {words}")
    one = seen["portable"]
    proof.demand(all(counts == one for counts in seen.values()), "every instruction set saw the same events, each:")
    steps, replayed = one["steps"], one["replayed steps"]
    proof.demand(replayed == steps, f"{replayed} of {steps} steps replayed, none of the undisturbed")
    for event in EVENTS:
        proof.demand(one[event] >= minimum, f"{one[event]} {event}")
    count_page_sizes(proof, one)


def compare(proof: Proof, claim: str, different: list[str]) -> None:
    for line in different[:10]:
        proof.say(f"  {line}")
    proof.demand(not different, f"{claim}: {len(different)} differ")


def count_page_sizes(proof: Proof, seen: Counter[str]) -> None:
    sizes = ", ".join(f"{size}: {seen[f'page size {size}']}" for size in PAGE_SIZES)
    proof.demand(all(seen[f"page size {size}"] for size in PAGE_SIZES), f"schedules by page size {sizes}")


if __name__ == "__main__":
    main()
