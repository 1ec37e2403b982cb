"""Models from the Hugging Face hub: what a repository holds, which of it is needed, and fetching it file by file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from vivace.errors import DownloadError, ModelError, UnsupportedModel, nearest
from vivace.weights.download import FetchOptions, Request, Retry, download
from vivace.weights.entries import is_inside
from vivace.weights.http import Interrupted, Refusal, get_json
from vivace.weights.partfile import Expected, file_matches, require_space
from vivace.weights.progress import size_text

PUBLIC_ENDPOINT = "https://huggingface.co"

_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_-])?"
_HUB_ID = re.compile(rf"(?P<repo>{_PART}/{_PART})(?:@(?P<revision>[A-Za-z0-9][\w./-]{{0,199}}))?(?::(?P<file>[^:@]+))?")

# A model folder is its configuration, its tokenizer and its weights; all else in a repository is left there.
_FOLDER_FILE = re.compile(
    r"(config|generation_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab|chat_template"
    r"|preprocessor_config|processor_config|modules|sentence_bert_config|config_sentence_transformers"
    r"|model\.safetensors\.index)\.json|(vocab|merges)\.txt|tokenizer\.model|chat_template\.jinja"
)
_MODULE_FILE = re.compile(r"\d+_\w+/(config\.json|model\.safetensors)")  # parts of a sentence-transformers pipeline
_SPLIT_GGUF = re.compile(r"-\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)
_GGUF_CHOICE = ("Q4_K_M", "Q8_0", "Q4_1", "Q4_0", "BF16", "F16")  # what is taken when a repository offers several
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


@dataclass(frozen=True)
class HubName:
    """`org/name`, perhaps with `@revision` (branch, tag or commit) and `:file` (a GGUF file or its quantization)."""

    repo: str
    revision: str
    file: str

    def __str__(self) -> str:
        return f"{self.repo}@{self.revision}" + (f":{self.file}" if self.file else "")


@dataclass(frozen=True)
class HubFile:
    """A file of a repository and what it must be."""

    path: str
    expected: Expected


@dataclass(frozen=True)
class Listing:
    """What a repository holds at one commit. `licence` is "" if the repository states none."""

    repo: str
    commit: str
    licence: str
    kind: str
    files: tuple[HubFile, ...]


def parse_hub_name(text: str) -> HubName | None:
    """Read `org/name[@revision][:file]`; None if `text` is not of that form."""
    found = _HUB_ID.fullmatch(text)
    if not found or ".." in text or "--" in found["repo"]:
        return None
    return HubName(found["repo"], found["revision"] or "main", found["file"] or "")


def is_hub_disabled() -> bool:
    """Whether the ecosystem's own switch, HF_HUB_OFFLINE, forbids the hub."""
    return os.environ.get("HF_HUB_OFFLINE", "").strip().upper() in ("1", "TRUE", "YES", "ON")


def list_repository(name: HubName, retry: Retry) -> Listing:
    """Ask the hub what `name` holds. Raises DownloadError (missing, gated, no network)."""
    url = f"{_endpoint()}/api/models/{name.repo}/revision/{quote(name.revision, safe='')}?blobs=true"
    try:
        table = _get_json(url, retry)
    except Refusal as refusal:
        raise _explain(refusal, name.repo, name.revision, retry) from refusal
    try:
        return _listing(name.repo, table)
    except (KeyError, TypeError, AttributeError) as error:
        raise DownloadError(
            f"the hub's description of {name.repo} cannot be read: {type(error).__name__} {error}",
            hint="check HF_ENDPOINT: the server may not be a Hugging Face hub",
        ) from error


def choose_files(listing: Listing, wanted: str) -> list[HubFile]:
    """The files that a model needs: a folder with safetensors weights, or one .gguf file.

    `wanted` is a file name or a quantization such as Q4_K_M, "" for the best default. Raises DownloadError if it is
    not there, UnsupportedModel if the repository has no weights in a format that can be read.
    """
    ggufs = [file for file in listing.files if file.path.lower().endswith(".gguf")]
    weights = [file for file in listing.files if "/" not in file.path and file.path.endswith(".safetensors")]
    if wanted:
        return [_wanted_gguf(listing.repo, ggufs, wanted)]
    if weights:
        named = [file for file in weights if file.path.startswith("model")]
        others = [
            file for file in listing.files if _FOLDER_FILE.fullmatch(file.path) or _MODULE_FILE.fullmatch(file.path)
        ]
        return sorted({*(named or weights), *others}, key=lambda file: file.path)
    if ggufs:
        return [_default_gguf(listing.repo, ggufs)]
    pickled = [file.path for file in listing.files if file.path.endswith(_PICKLES)]
    raise UnsupportedModel(
        f"{listing.repo} holds no safetensors and no GGUF weights"
        + (f", only pickles ({pickled[0]}), which can run any code when they are loaded" if pickled else ""),
        hint="look for a repository of the same model with model.safetensors or .gguf files",
    )


def fetch_files(repo: str, revision: str, files: Sequence[HubFile], staging: Path, options: FetchOptions) -> list[str]:
    """Fetch `files` into `staging`/files, keeping what an earlier try left; returns their sha256 in order."""
    require_space(staging, sum(file.expected.num_bytes - _num_bytes_here(staging, file) for file in files))
    return [_fetch_file(repo, revision, file, staging, options) for file in files]


def _fetch_file(repo: str, revision: str, file: HubFile, staging: Path, options: FetchOptions) -> str:
    target = staging / "files" / file.path
    if sha256 := file_matches(target, file.expected):
        return sha256
    request = Request(
        url=f"{_endpoint()}/{repo}/resolve/{quote(revision, safe='')}/{quote(file.path)}",
        label=file.path,
        part=_part_path(staging, file),
        target=target,
        expected=file.expected,
        token=_token(),
    )
    try:
        return download(request, options)
    except Refusal as refusal:
        raise _explain(refusal, repo, revision, options.retry, file.path) from refusal


def _part_path(staging: Path, file: HubFile) -> Path:
    return staging / "parts" / f"{file.expected.sha256 or file.expected.git_sha1}.part"


def _num_bytes_here(staging: Path, file: HubFile) -> int:
    for path in (staging / "files" / file.path, _part_path(staging, file)):
        if path.is_file():
            return min(path.stat().st_size, file.expected.num_bytes)
    return 0


def _listing(repo: str, table: Mapping[str, Any]) -> Listing:
    files = []
    for sibling in table["siblings"]:
        path = sibling["rfilename"]
        if not is_inside(path):
            raise DownloadError(
                f"{repo} lists a file name that could leave its folder: {ascii(path)[:120]}",
                reason="digest",
                hint="do not use this repository: such a name is an attack or a mistake",
            )
        lfs = sibling.get("lfs")
        expected = Expected(int(lfs["size"]), sha256=str(lfs["sha256"])) if lfs else _plain_blob(sibling)
        files.append(HubFile(path, expected))
    card = table.get("cardData") or {}
    licence = str(card.get("license_name") or card.get("license") or "")
    kind = {"text-generation": "generate", "feature-extraction": "embed", "sentence-similarity": "embed"}
    return Listing(repo, str(table["sha"]), licence, kind.get(str(table.get("pipeline_tag")), ""), tuple(files))


def _plain_blob(sibling: Mapping[str, Any]) -> Expected:
    return Expected(int(sibling["size"]), git_sha1=str(sibling["blobId"]))


def _wanted_gguf(repo: str, ggufs: Sequence[HubFile], wanted: str) -> HubFile:
    exact = [file for file in ggufs if file.path == wanted]
    matching = exact or [file for file in ggufs if _has_quantization(file.path, wanted)]
    if len(matching) != 1:
        what = "no GGUF file" if not matching else f"{len(matching)} GGUF files"
        raise DownloadError(
            f"{repo} has {what} for '{wanted}'",
            reason="missing",
            hint=nearest(wanted, [file.path for file in matching or ggufs]),
        )
    return _whole(repo, matching[0])


def _default_gguf(repo: str, ggufs: Sequence[HubFile]) -> HubFile:
    if len(ggufs) == 1:
        return _whole(repo, ggufs[0])
    for quantization in _GGUF_CHOICE:
        matching = [file for file in ggufs if _has_quantization(file.path, quantization)]
        if len(matching) == 1:
            return _whole(repo, matching[0])
    offered = ", ".join(f"{file.path} ({size_text(file.expected.num_bytes)})" for file in ggufs[:12])
    raise DownloadError(
        f"{repo} has {len(ggufs)} GGUF files: {offered}",
        reason="missing",
        hint=f"name one of them: {repo}:{ggufs[0].path}",
    )


def _has_quantization(path: str, quantization: str) -> bool:
    return re.search(rf"(^|[-._/]){re.escape(quantization)}\.gguf$", path, re.IGNORECASE) is not None


def _whole(repo: str, file: HubFile) -> HubFile:
    if _SPLIT_GGUF.search(file.path):
        raise UnsupportedModel(
            f"{file.path} of {repo} is one piece of a split GGUF file",
            hint="take a repository with a single .gguf file or with safetensors",
        )
    return file


def _endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or PUBLIC_ENDPOINT).rstrip("/")


def _token() -> str | None:
    # Imported when first needed: it brings an HTTP client of its own, which only this lookup pays for.
    from huggingface_hub import get_token

    return get_token()


def _get_json(url: str, retry: Retry) -> Any:
    for attempt in range(1, retry.tries + 1):
        try:
            return get_json(url, _token())
        except Interrupted as error:
            if attempt == retry.tries:
                raise DownloadError(f"no answer from the hub in {attempt} tries: {error}", hint="try later") from error
            retry.sleep(max(error.wait_s, retry.first_wait_s * 2 ** (attempt - 1)))
    raise AssertionError("tries is at least 1")


def _explain(refusal: Refusal, repo: str, revision: str, retry: Retry, path: str = "") -> ModelError:
    """The error for a final HTTP status: what the hub refuses, and what to do about it."""
    page, has_token = f"{_endpoint()}/{repo}", bool(_token())
    if refusal.code == "GatedRepo" or (refusal.status == 403 and refusal.code != "RepoNotFound"):
        token = "the account of your token" if has_token else "that account, and set HF_TOKEN to a token of it"
        return DownloadError(
            f"{repo} is gated: the hub answered {refusal.status}, its owner gives access to named accounts only",
            reason="gated",
            hint=f"log in at {page}, accept the licence there with {token}",
        )
    if refusal.status in (401, 404):
        if refusal.code == "RevisionNotFound":
            return DownloadError(f"{repo} has no revision '{revision}'", reason="missing", hint=f"see {page}/tree/main")
        if refusal.code == "EntryNotFound" or (path and refusal.status == 404):
            return DownloadError(f"{repo} has no file '{path}'", reason="missing", hint=f"see {page}/tree/{revision}")
        problem = "or your token may not read it" if has_token else "or it is private: then set HF_TOKEN"
        return DownloadError(
            f"the hub has no repository {repo}, {problem} (it answered {refusal.status})",
            reason="missing",
            hint=_similar(repo, retry) or "check the spelling: org/name, upper and lower case as on its page",
        )
    return DownloadError(f"the hub answered {refusal.status} for {refusal.url}", hint="try later, or check HF_ENDPOINT")


def _similar(repo: str, retry: Retry) -> str:
    """A hint with the repositories whose names are near; "" if the hub does not tell."""
    query = urlencode({"search": repo.partition("/")[2], "limit": 5})
    try:
        found = _get_json(f"{_endpoint()}/api/models?{query}", retry)
        names = [str(model["id"]) for model in found]
    except (DownloadError, Refusal, KeyError, TypeError):
        return ""
    return nearest(repo, names) if names else ""
