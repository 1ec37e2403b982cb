"""The size of the house: what `vivace info` and `make size` print, no file over the limit, no open marks."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys

from tests.architecture.test_sizes import MAX_FILE_LINES, open_marks, sources
from tests.proof import ROOT, Proof
from tools import size
from vivace.cli.info import as_text, by_implementation

LOCAL = ("environment", "models")  # sections that tell of one machine's folders: not kept in the repository


def main() -> None:
    with Proof("size", __doc__) as proof:
        info = subprocess.run([sys.executable, "-m", "vivace", "info", "--json"], capture_output=True, text=True)
        proof.demand(info.returncode == 0, f"vivace info ends with status 0 {info.stderr}".rstrip())
        if info.returncode == 0:
            report = json.loads(info.stdout)
            report["kernels"] = by_implementation(report["kernels"])
            proof.say(as_text({title: rows for title, rows in report.items() if title not in LOCAL}))
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            size.main()
        proof.say("\n" + printed.getvalue())
        lines, path = max((path.read_text().count("\n"), path) for path in sources())
        claim = f"the longest file is {path.relative_to(ROOT)} with {lines} lines, at most {MAX_FILE_LINES} are allowed"
        proof.demand(lines <= MAX_FILE_LINES, claim)
        marks = open_marks()
        proof.demand(not marks, f"no open marks are left {marks}".rstrip())


if __name__ == "__main__":
    main()
