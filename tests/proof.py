"""The frame of every `make prove-...` command: size, machine and commit, the claims it checked, and the kept output.

    with Proof("stories", __doc__) as proof:
        proof.say("...")                      # printed, and kept at full size
        proof.demand(matches == 200, "...")   # a claim: printed as ok or FAILED; any failure ends with exit status 1

`--size full` writes docs/proofs/<name>.txt; `--size small` is what CI runs.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).resolve().parents[1]


class Proof:
    def __init__(self, name: str, purpose: str | None, *, arguments: argparse.ArgumentParser | None = None) -> None:
        self.name = name
        parser = arguments or argparse.ArgumentParser(description=purpose)
        parser.add_argument("--size", choices=("small", "full"), default="small")
        self.options = parser.parse_args()
        self.is_full = self.options.size == "full"
        self._lines: list[str] = []
        self._failed = 0
        self._start = time.perf_counter()
        self.say(f"prove-{name}, size {self.options.size}")
        if purpose:
            self.say(purpose.strip().splitlines()[0])
        self.say(f"machine: {machine()}")
        self.say(f"commit: {commit()}")

    def __enter__(self) -> Proof:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            return
        self.say(f"{'FAILED' if self._failed else 'all claims hold'} ({time.perf_counter() - self._start:.1f} s)")
        if self.is_full:
            target = ROOT / "docs" / "proofs" / f"{self.name}.txt"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text("\n".join(self._lines) + "\n")
        if self._failed:
            sys.exit(1)

    def say(self, line: str) -> None:
        print(line, flush=True)
        self._lines.append(line)

    def demand(self, holds: bool, claim: str) -> None:
        self._failed += not holds
        self.say(f"{'ok     ' if holds else 'FAILED '} {claim}")


def machine() -> str:
    """CPU model, cores, memory, Python and torch: what a reader needs to compare numbers."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
    cores = sum(line.startswith("processor") for line in lines) or 1
    return f"{model}, {cores} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"


def commit() -> str:
    """The commit of the checkout, marked when the tree differs from it; kept outputs do not count."""
    changed = _git("status", "--porcelain", "-uno", "--", ".", ":!docs/proofs", ":!benchmarks/results")
    return _git("rev-parse", "--short=12", "HEAD") + (" (modified)" if changed else "")


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()
