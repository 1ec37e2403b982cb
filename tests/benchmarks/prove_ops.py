"""Every operation of the menu, in every implementation, at odd shapes too, beside the measured ceilings.

At full size the table goes to benchmarks/results/ops.json as well; it has to be done within four minutes.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict

import torch

from benchmarks.ops import every_case, implementations, measure, resolve_set, table
from tests.proof import ROOT, Proof, commit, machine
from vivace.kernels.ops import Ops
from vivace.lab.ceilings import measure_ceilings
from vivace.runtime.device import probe_hardware

RESULTS = ROOT / "benchmarks" / "results" / "ops.json"
AT_LOAD = {"pack_linear", "pack_table", "pack_experts", "make_store"}  # not part of a step
LIMIT_S = 240.0


def main() -> None:
    with Proof("ops", __doc__) as proof:
        began, threads = time.perf_counter(), probe_hardware().cores
        torch.manual_seed(0)
        ceilings = measure_ceilings(threads, 0.3 if proof.is_full else 0.01)
        proof.say(ceilings.describe())
        cases, names = every_case(is_full=proof.is_full), implementations(is_full=proof.is_full)
        results = []
        for name in names:
            ops = resolve_set(name, threads)
            results += [measure(case, name, ops, ceilings, 0.01 if proof.is_full else 0.0) for case in cases]
        for line in table(results).splitlines():
            proof.say(line)
        took = time.perf_counter() - began
        menu = {name for name in vars(Ops) if not name.startswith("_")} - AT_LOAD
        proof.demand({result.op for result in results} == menu, f"all {len(menu)} operations of the menu were timed")
        expected = len(cases) * len(names)
        proof.demand(len(results) == expected, f"{len(cases)} cases in each of {', '.join(names)}")
        proof.demand(took < LIMIT_S, f"{took:.0f} s, within {LIMIT_S:.0f}")
        if proof.is_full:
            report = {"machine": machine(), "commit": commit(), "threads": threads, "ceilings": asdict(ceilings)}
            RESULTS.parent.mkdir(parents=True, exist_ok=True)
            RESULTS.write_text(
                json.dumps({**report, "results": [asdict(result) for result in results]}, indent=1) + "\n"
            )


if __name__ == "__main__":
    main()
