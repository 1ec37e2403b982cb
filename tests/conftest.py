"""Fixtures that tests of several folders share: real models and extra data, skipped with a reason where absent."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from vivace.errors import DownloadError
from vivace.weights.catalog import resolve

# A shell starts background jobs with Ctrl-C ignored, which the programs that tests start would inherit.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def real_model() -> Callable[[str], Path]:
    """A function from a catalog name to the model's file or folder; skips the test if the model cannot be had."""
    found: dict[str, Path | str] = {}

    def path_of(name: str) -> Path:
        if name not in found:
            try:
                found[name] = resolve(name).path
            except DownloadError as error:
                found[name] = f"{name} is not cached and cannot be pulled: {error.message}"
        answer = found[name]
        if isinstance(answer, str):
            pytest.skip(answer)
        return answer

    return path_of


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder of extra data, named by VIVACE_TEST_DATA; skips the test if there is none."""
    folder = Path(os.environ.get("VIVACE_TEST_DATA") or "VIVACE_TEST_DATA is not set")
    if not folder.is_dir():
        pytest.skip(f"no extra data: set VIVACE_TEST_DATA to its folder (now: {folder})")
    return folder
