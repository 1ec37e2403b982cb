"""The count of the README proof takes the summary lines of pytest and nothing else."""

from __future__ import annotations

from tests.architecture.prove_readme import count_tests

PRINTED = """\
19 failed steps
  engine: 393 jobs_finished, 0 jobs_failed
1 failed, 40 passed, 2 skipped in 3.50s
83 passed in 64.94s (0:01:04)
ok      83 passed, 0 failed
"""


def test_only_summary_lines_are_counted() -> None:
    assert count_tests(PRINTED) == {"failed": 1, "passed": 123, "skipped": 2}
