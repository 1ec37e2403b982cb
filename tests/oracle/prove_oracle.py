"""Every model equals the library that published it on redrawn tiny checkpoints, and each feature left out is seen."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.proof import Proof

FAMILIES = ("llama", "qwen3", "gemma3", "bert", "gguf")
SEES = ("is_seen", "are_seen")  # how the name of a test ends that switches a feature off


class Tally:
    """Counts results per (file, kind of test)."""

    def __init__(self) -> None:
        self.passed: Counter[tuple[str, str]] = Counter()
        self.failed: list[str] = []
        self.skipped = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)
        elif report.skipped:
            self.skipped += 1
        elif report.when == "call":
            file, _, name = report.nodeid.partition("::")
            kind = "seen" if name.partition("[")[0].endswith(SEES) else "equal"
            self.passed[Path(file).stem.removeprefix("test_"), kind] += 1


def main() -> None:
    with Proof("oracle", __doc__) as proof:
        tally = Tally()
        os.chdir(Path(__file__).resolve().parents[2])
        code = pytest.main(["-q", "--no-header", "-p", "no:cacheprovider", "tests/oracle"], plugins=[tally])
        sys.stdout.flush()
        for family in FAMILIES:
            equal, seen = tally.passed[family, "equal"], tally.passed[family, "seen"]
            proof.demand(
                equal > 0 and seen > 0, f"{family}: {equal} comparisons equal, {seen} switched-off features seen"
            )
        proof.demand(code == 0 and not tally.failed, f"{sum(tally.passed.values())} passed, {len(tally.failed)} failed")
        proof.demand(tally.skipped == 0, f"{tally.skipped} skipped")


if __name__ == "__main__":
    main()
