"""The quantized path beside the prototype, the best peer and the memory's ceiling (Shows 1, 2 and 5 of the CPU work).

    python -m tests.benchmarks.prove_speed --size full --peers "--llama build/bin --openvino ov/bin/python"
    python -m tests.benchmarks.prove_speed --size full --smollm2 results/a.json --gemma3 results/b.json

The small size tries the machinery: the tiny model, both activation formats, no peer. Figures are printed as they are:
a target that is missed is a line that says so, and only a measurement that is missing at full size fails.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.speed import Line, gemma_lines, smollm2_lines
from tests.proof import ROOT, Proof

VARIANTS = ("--vivace", "int14:activations=int14,kv_format=f16", "--vivace", "int8:activations=int8,kv_format=f16")
TINY = ROOT / "tests" / "assets" / "tiny-llama"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default="", help="arguments of benchmarks.peers that say where the peers are")
    parser.add_argument("--smollm2", type=Path, help="readings of SmolLM2 to judge instead of measuring")
    parser.add_argument("--gemma3", type=Path, help="readings of Gemma 3 270M to judge instead of measuring")
    with Proof("speed", __doc__, arguments=parser) as proof:
        options = proof.options
        if proof.is_full:
            peers = shlex.split(options.peers)
            show(proof, report_of(options.smollm2, "smollm2", peers), "smollm2")
            without = _without(peers, "--prototype", "--openvino-ir", "--vllm")
            show(proof, report_of(options.gemma3, "gemma3", [*without, "--streams", "1", "16"]), "gemma3")
        else:
            show(proof, measure(str(TINY), ["--size", "small", "--pairs", "1"]), "tiny")


def report_of(given: Path | None, model: str, arguments: Sequence[str]) -> dict[str, Any]:
    """The readings of a file that was given, else of a run of all peers."""
    if given is not None:
        report: dict[str, Any] = json.loads(given.read_text())
        return report
    return measure(model, ["--size", "full", *arguments], keep=True)


def measure(model: str, arguments: Sequence[str], *, keep: bool = False) -> dict[str, Any]:
    """A run of benchmarks.peers; its readings are kept in benchmarks/results, or only for this proof."""
    with tempfile.TemporaryDirectory() as folder:
        results = ROOT / "benchmarks" / "results" if keep else Path(folder)
        target = results / f"speed-{Path(model).stem}.json"
        command = [sys.executable, "-m", "benchmarks.peers", model, *VARIANTS, *arguments, "--json", str(target)]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        report: dict[str, Any] = json.loads(target.read_text())
        return report


def show(proof: Proof, report: dict[str, Any], kind: str) -> None:
    """Every line of a model's claims. At full size each must have been measured."""
    ceiling = report["ceilings"]["bytes_per_s"][-1]
    proof.say(f"{report['model']}, commit {report['software']['commit']}, reading {ceiling / 1e9:.1f} GB/s")
    for name, reason in report["skipped"].items():
        proof.say(f"  skipped {name}: {reason}")
    if kind == "tiny":
        names = {row["vivace_name"] for row in report["rows"]}
        proof.demand(names == {"int14", "int8"}, "both activation formats were measured through the engine")
        lines: list[Line] = [*smollm2_lines(report), *gemma_lines(report)]
        proof.demand(all(line.found is None or line.found > 0 for line in lines), f"{len(lines)} lines can be judged")
        return
    lines = list(smollm2_lines(report) if kind == "smollm2" else gemma_lines(report))
    for line in lines:
        proof.say(f"  {line.describe()}")
    proof.say(f"  {sum(line.is_met for line in lines)} of {len(lines)} targets are met")
    proof.demand(all(line.found is not None for line in lines), f"every line of {kind} was measured")


def _without(arguments: Sequence[str], *names: str) -> list[str]:
    """The arguments except those of these names, each of which has a value."""
    dropped = {place + offset for place, text in enumerate(arguments) if text in names for offset in (0, 1)}
    return [text for place, text in enumerate(arguments) if place not in dropped]


if __name__ == "__main__":
    main()
