"""Names of models: the table of short names, local paths, what is refused, and the commands that list and pull."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tests.weights.fake_hub import FakeHub, Repo, catalog_text
from vivace.cli.models import list_models, models
from vivace.cli.pull import pull
from vivace.errors import ConfigError, DownloadError, UnknownModel
from vivace.weights.cache import Cache
from vivace.weights.catalog import resolve
from vivace.weights.entries import Catalog, HubSource, WheelSource, is_inside
from vivace.weights.progress import size_text

FILES = {"config.json": b"{}", "model.safetensors": b"weights"}


def test_every_entry_of_the_catalog_is_complete_and_its_default_exists() -> None:
    catalog = Catalog()
    assert catalog.default in catalog.entries
    for name, entry in catalog.entries.items():
        assert parts_of_a_short_name(name)
        assert entry.kind in ("generate", "embed")
        assert entry.title
        assert entry.licence
        assert entry.licence_url.startswith("https://")
        assert entry.sources
        for file in entry.files:
            assert file.num_bytes > 0
            assert len(bytes.fromhex(file.sha256)) == 32


def parts_of_a_short_name(name: str) -> bool:
    """A short name must never be taken for a hub id or a path, nor share a cache folder with a hub id."""
    return name == name.lower() and "/" not in name and "--" not in name and not name.startswith(".")


def test_every_source_of_the_catalog_is_pinned() -> None:
    for entry in Catalog().entries.values():
        for source in entry.sources:
            if isinstance(source, HubSource):
                assert len(bytes.fromhex(source.revision)) == 20
            else:
                assert isinstance(source, WheelSource)
                assert all(package.count("==") == 1 for package in source.packages)
                assert all(source.pieces(file.path) for file in entry.files)


def test_an_unknown_short_name_gives_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UnknownModel, match="no model 'smolm2'") as caught:
        resolve("smolm2", cache_dir=tmp_path)
    assert caught.value.hint == "did you mean 'smollm2'?"
    assert caught.value.status == 404


@pytest.mark.parametrize(
    "name",
    ["", "a\0b", "a\nb", "x" * 300, "x" * 2000, "~no-such-user/m", "org/name/../../..", "a:b", "https://example.org/m"],
)
def test_what_cannot_be_a_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnknownModel):
        resolve(name, cache_dir=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [None, 7, ["smollm2"]])
def test_what_is_no_text_is_refused_by_its_type(name: Any) -> None:
    with pytest.raises(UnknownModel, match=f"is of type {type(name).__name__}, expected a text or a path"):
        resolve(name)


def test_a_path_upwards_is_a_path_and_never_a_name_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "config.json").touch()
    monkeypatch.chdir(tmp_path / "here")
    assert resolve("..", cache_dir=tmp_path / "cache").path == Path("..")
    with pytest.raises(UnknownModel, match=r"no file or folder ../../none"):
        resolve("../../none", cache_dir=tmp_path / "cache")
    with pytest.raises(ConfigError, match=r"neither config.json nor a .gguf"):
        resolve("../here", cache_dir=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_local_files_and_folders_are_used_where_they_are(tmp_path: Path) -> None:
    gguf = tmp_path / "m.gguf"
    gguf.write_bytes(b"GGUF")
    assert resolve(gguf).path == gguf
    assert resolve(str(gguf)).origin == f"local {gguf}"
    assert resolve(gguf).digest == hashlib.sha256(b"GGUF").hexdigest()
    assert resolve(tmp_path).path == gguf
    (tmp_path / "config.json").write_bytes(b"{}")
    assert resolve(tmp_path).path == tmp_path
    assert len(resolve(tmp_path).digest) == 64


def test_paths_that_hold_no_model_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ConfigError, match=r"expected a .gguf file or a folder"):
        resolve(tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match="neither"):
        resolve(tmp_path)
    (tmp_path / "a.gguf").touch()
    (tmp_path / "b.gguf").touch()
    with pytest.raises(ConfigError, match=r"2 .gguf files") as caught:
        resolve(tmp_path)
    assert "a.gguf" in caught.value.hint
    with pytest.raises(UnknownModel, match="no file or folder"):
        resolve(tmp_path / "none.gguf")


def test_offline_and_not_cached_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="tiny is not in the cache") as caught:
        resolve(
            "tiny", cache_dir=tmp_path, offline=True, catalog=Catalog(catalog_text(FILES, 'hub="o/n"\nrevision="m"'))
        )
    assert caught.value.hint == "run `vivace pull tiny` once with the network on"


def test_an_entry_comes_from_the_hub_and_the_next_source_stands_in(hub: FakeHub, tmp_path: Path) -> None:
    bad, good = 'hub = "org/bad"\nrevision = "main"', 'hub = "org/good"\nrevision = "main"'
    catalog = Catalog(catalog_text(FILES, bad, good))
    with pytest.raises(DownloadError, match=r"any of its sources:\n.*org/bad.*\n.*org/good"):
        resolve("tiny", cache_dir=tmp_path, catalog=catalog)
    hub.repos["org/bad"] = Repo({**FILES, "model.safetensors": b"WEIGHTS"})
    hub.repos["org/good"] = Repo(FILES)
    files = resolve("tiny", cache_dir=tmp_path, catalog=catalog)
    assert (files.origin, files.licence, files.kind) == ("hub org/good@main", "MIT", "generate")
    assert (files.path / "model.safetensors").read_bytes() == b"weights"
    assert resolve("tiny", cache_dir=tmp_path, offline=True, catalog=catalog) == files
    rows = list_models(catalog, Cache(tmp_path))
    assert [(row.name, row.num_bytes, row.origin, row.path) for row in rows] == [
        ("tiny", 9, files.origin, str(files.path))
    ]


def test_a_record_that_cannot_be_read_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    home = tmp_path / "models" / "tiny"
    home.mkdir(parents=True)
    for number, text in enumerate(["", "[]", "{}", '{"files": 1}', '{"files": [], "asked": [], "other": 1}']):
        (home / f"{number}.json").write_text(text)
    assert Cache(tmp_path).records() == []


@pytest.mark.parametrize("path", ["a", "a/b.json", "1_Pooling/config.json", ".gitattributes"])
def test_names_inside_a_folder_are_accepted(path: str) -> None:
    assert is_inside(path)


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(0, "0 B"), (999, "999 B"), (98_362_432, "98.4 MB"), (5_000_000_000_000, "5000.00 GB")]
)
def test_sizes_read_as_people_write_them(num_bytes: int, text: str) -> None:
    assert size_text(num_bytes) == text


def command_line() -> typer.Typer:
    app = typer.Typer()
    app.command()(pull)
    app.command()(models)
    return app


def test_models_lists_the_catalog_as_table_and_as_json(tmp_path: Path) -> None:
    listed = CliRunner().invoke(command_line(), ["models", "--json", "--cache-dir", str(tmp_path)])
    assert listed.exit_code == 0
    names = [row["name"] for row in json.loads(listed.stdout)]
    assert names == list(Catalog().entries)
    table = CliRunner().invoke(command_line(), ["models", "--cache-dir", str(tmp_path)])
    assert all(name in table.stdout for name in names)


def test_pull_prints_origin_licence_digest_and_path(hub: FakeHub, tmp_path: Path) -> None:
    hub.repos["org/tiny"] = Repo(FILES, licence="apache-2.0")
    result = CliRunner().invoke(command_line(), ["pull", "org/tiny", "nosuch", "--cache-dir", str(tmp_path)])
    assert result.exit_code == 1
    assert "error: no model 'nosuch'" in result.stderr
    files = resolve("org/tiny", cache_dir=tmp_path, offline=True)
    for word in ("org/tiny", files.origin, "apache-2.0", files.digest, str(files.path)):
        assert word in result.stdout
