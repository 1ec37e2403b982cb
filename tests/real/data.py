"""Where the extra data lies, for proofs that run outside pytest."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def data_folder() -> Path:
    """The folder that VIVACE_TEST_DATA names; ends the program with a reason if there is none."""
    folder = os.environ.get("VIVACE_TEST_DATA", "")
    if not folder or not Path(folder).is_dir():
        print("skipped: this proof needs extra data; set VIVACE_TEST_DATA to its folder")
        sys.exit(0)
    return Path(folder)
