"""Run every file of examples/ as a newcomer would, with its own interpreter, and show what it printed."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
MAX_LINES = 40


def main() -> int:
    failed = 0
    for path in sorted(EXAMPLES.glob("*.py")):
        assert path.read_text().count("\n") < MAX_LINES, f"{path.name} has {MAX_LINES} lines or more"
        start = time.perf_counter()
        done = subprocess.run([sys.executable, path], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        failed += done.returncode != 0
        print(f"== {path.name}: {'ok' if done.returncode == 0 else 'FAILED'} in {time.perf_counter() - start:.1f} s")
        print(done.stdout[-2000:] + (done.stderr[-4000:] if done.returncode else ""), flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
