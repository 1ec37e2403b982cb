"""Times every operation in every implementation beside what the machine can do: `make bench-ops`.

The ceilings are measured in the same run: reading memory, fused multiply-adds, products of bytes. A share of the
ceiling is the larger of the two shares. Work that stays in the caches reads faster than memory, so small shapes may
pass 100%. Times are the best of several.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.cases import Case, all_cases
from benchmarks.cases_experts import expert_cases
from benchmarks.cases_packed import packed_cases
from vivace.kernels import select
from vivace.kernels.cpu import bind
from vivace.lab.ceilings import Ceilings, best_time, measure_ceilings
from vivace.runtime.device import probe_hardware
from vivace.runtime.threads import use_threads

TIME_PER_CASE = 0.02  # seconds of repetitions of one case in one implementation, small size


@dataclass(frozen=True)
class Result:
    """One case in one implementation. `share` is that of the ceiling, 0 to 1."""

    op: str
    shape: str
    implementation: str
    us: float
    gflops: float
    gbytes: float
    share: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=("small", "full"), default="small")
    parser.add_argument("--threads", type=int, default=probe_hardware().cores)
    parser.add_argument("--op", help="time this operation only")
    parser.add_argument("--json", type=Path, help="write the results here too")
    options = parser.parse_args()
    is_full = options.size == "full"
    torch.manual_seed(0)
    ceilings = measure_ceilings(options.threads)
    machine = {**asdict(probe_hardware()), "threads": options.threads, "torch": torch.__version__, "commit": _commit()}
    print(f"{machine['cpu']}, {options.threads} threads, torch {torch.__version__}, commit {machine['commit']}")
    print(ceilings.describe() + "\n")
    cases = [case for case in every_case(is_full=is_full) if options.op in (None, case.op)]
    seconds = 5 * TIME_PER_CASE if is_full else TIME_PER_CASE
    results = []
    for name in implementations(is_full=is_full):
        ops = resolve_set(name, options.threads)
        results += [measure(case, name, ops, ceilings, seconds) for case in cases]
    print(table(results))
    if options.json:
        report = {"machine": machine, "ceilings": asdict(ceilings), "results": [asdict(result) for result in results]}
        options.json.write_text(json.dumps(report, indent=1) + "\n")


def every_case(*, is_full: bool) -> tuple[Case, ...]:
    """All cases: at least one for each operation of the menu."""
    return (*all_cases(is_full=is_full), *packed_cases(is_full=is_full), *expert_cases(is_full=is_full))


def implementations(*, is_full: bool) -> list[str]:
    """Sets of operations: the reference, which is torch, and native ones for the best instruction set, in full size for
    each that this machine can be made to use."""
    isas = bind.supported_isas() if bind.why_missing() is None else ()
    return ["ref", *(isas if is_full else isas[:1])]


def measure(case: Case, name: str, ops: select.BoundOps, ceilings: Ceilings, seconds: float) -> Result:
    """The best time of a case, as rates and as a share of the ceilings."""
    time_s = best_time(case.prepare(ops), seconds)
    rate = ceilings.floats_per_s
    if case.byte_products and ceilings.integers_per_s and name != "ref":
        rate = ceilings.integers_per_s / case.byte_products
    share = max(case.bytes / ceilings.read_bytes_per_s, case.operations / rate) / time_s
    gflops, gbytes = case.operations / time_s / 1e9, case.bytes / time_s / 1e9
    return Result(case.op, case.shape, f"{name}: {ops.bound[case.op].name}", 1e6 * time_s, gflops, gbytes, share)


def table(results: list[Result]) -> str:
    """Fixed columns, one row per case and implementation, implementations of a case side by side."""
    lines = [f"{'operation':17} {'shape':28} {'implementation':30} {'us':>10} {'Gop/s':>9} {'GB/s':>8} {'ceiling':>8}"]
    for result in sorted(results, key=lambda result: result.op):
        lines.append(
            f"{result.op:17} {result.shape:28} {result.implementation:30} {result.us:10.1f} {result.gflops:9.1f} "
            f"{result.gbytes:8.1f} {result.share:8.0%}"
        )
    return "\n".join(_grouped(lines))


def _grouped(lines: list[str]) -> Iterator[str]:
    """The table with each case's implementations next to each other, in the order in which cases first came."""
    yield lines[0]
    order: dict[str, list[str]] = {}
    for line in lines[1:]:
        order.setdefault(line[:46], []).append(line)
    for group in order.values():
        yield from group


def resolve_set(name: str, threads: int) -> select.BoundOps:
    """The operations of an implementation, after the threads were shared out."""
    use_threads(threads, native=name != "ref")
    return select.resolve(choice="ref") if name == "ref" else select.resolve(choice="native", isa=name, threads=threads)


def _commit() -> str:
    """The checked-out commit, marked when files differ from it."""
    root = Path(__file__).parent
    run = [("git", "rev-parse", "--short", "HEAD"), ("git", "status", "--porcelain", "--untracked-files=no")]
    try:
        head, changes = (subprocess.run(c, cwd=root, capture_output=True, text=True, check=True).stdout for c in run)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.strip() + (" with changes" if changes.strip() else "")


if __name__ == "__main__":
    main()
