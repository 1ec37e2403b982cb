"""The proof of dense weights runs in its small size: folders are made, both engines answer, figures come out."""

from __future__ import annotations

import subprocess
import sys

from tests.proof import ROOT


def test_the_dense_proof_holds_in_its_small_size() -> None:
    command = [sys.executable, "-m", "tests.benchmarks.prove_dense", "--size", "small"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok ") == 4
