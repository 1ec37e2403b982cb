"""The README's two commands on a clean clone: the first streams an answer with Paris, the second passes every test.

Full size clones HEAD into a new folder, makes a new virtual environment there, and takes the wall time of both. Small
size asks the same question in the environment that runs this.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from tests.proof import ROOT, Proof

QUESTION = "What is the capital of France?"
SUMMARY = re.compile(r"^(\d+ [a-z]+, )*\d+ [a-z]+ in \d[\d.]*s", re.MULTILINE)  # the last line of a pytest run
COUNTS = re.compile(r"(\d+) (passed|failed|skipped|errors?)\b")
# Variables of this run, such as those of the make that started it: a newcomer has none of them.
OURS = ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "VENV", "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "SIZE")


def main() -> None:
    with Proof("readme", __doc__) as proof:
        if proof.is_full:
            with tempfile.TemporaryDirectory() as folder:
                prove_clone(proof, Path(folder) / "vivace")
        else:
            code, pieces, _ = run([sys.executable, "-m", "vivace", "run", "smollm2", QUESTION], ROOT)
            proof.demand(code == 0 and "Paris" in "".join(pieces), f"the answer is {''.join(pieces).strip()!r}")


def prove_clone(proof: Proof, clone: Path) -> None:
    """Both commands in a clone of HEAD whose virtual environment does not exist yet."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    cache = {"VIVACE_CACHE": str(clone.with_name("cache"))}  # empty: the download counts too
    code, pieces, seconds = run(["make", "answer"], clone, cache)
    answer = "".join(pieces)[-200:]
    proof.say(f"make answer: {seconds:.0f} s (virtual environment, install, build, download, answer)")
    proof.demand(code == 0 and "Paris" in answer, f"it ends with {answer.strip().splitlines()[-1]!r}")
    streamed = len(pieces) - max(index for index, piece in enumerate(pieces) if "vivace run" in piece) - 1
    proof.demand(streamed > 1, f"the answer came in {streamed} pieces")
    code, pieces, seconds = run(["make", "test"], clone, cache)
    printed = "".join(pieces)
    counts = count_tests(printed)
    proof.say(f"make test: {seconds:.0f} s (install of the test extra included)")
    for line in printed.splitlines()[-8:]:
        proof.say(f"  {line}")
    proof.demand(code == 0, "every test passes: " + ", ".join(f"{number} {word}" for word, number in counts.items()))


def count_tests(printed: str) -> dict[str, int]:
    """Results by kind, added up over the summary lines of all pytest runs in an output."""
    counts: dict[str, int] = {}
    for summary in SUMMARY.finditer(printed):
        for number, word in COUNTS.findall(summary.group()):
            counts[word] = counts.get(word, 0) + int(number)
    return counts


def run(
    words: list[str], folder: Path, extra: Mapping[str, str] = MappingProxyType({})
) -> tuple[int, list[str], float]:
    """Exit status, the pieces of output as they came (at least one read apart), and wall seconds."""
    environment = {name: value for name, value in os.environ.items() if name not in OURS}
    start = time.perf_counter()
    pieces = []
    with subprocess.Popen(
        words, cwd=folder, env={**environment, **extra}, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    ) as made:
        assert made.stdout is not None
        while piece := os.read(made.stdout.fileno(), 1 << 16):
            pieces.append(piece.decode(errors="replace"))
            print(pieces[-1], end="", flush=True)
    return made.returncode, pieces, time.perf_counter() - start


if __name__ == "__main__":
    main()
