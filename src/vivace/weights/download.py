"""One file over HTTP: resumed where it stopped, bounded by its stated size, verified before it counts."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path

from vivace.errors import DownloadError
from vivace.weights.http import CONNECTION_ERRORS, Interrupted, Refusal, open_url
from vivace.weights.partfile import CHUNK_BYTES, Expected, PartFile, require_space
from vivace.weights.progress import Progress, size_text

MAX_WAIT_S = 30.0


@dataclass(frozen=True)
class Retry:
    """How often a cut transfer is taken up again. Waits double from `first_wait_s`; a try that brought
    `progress_bytes` or more starts the count anew, so that a large file survives a bad line."""

    tries: int = 5
    first_wait_s: float = 0.5
    progress_bytes: int = 8 << 20
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True)
class FetchOptions:
    """How a model is fetched: whom to tell, how stubbornly, and whether the network may be used at all."""

    progress: Progress
    retry: Retry = Retry()
    offline: bool = False


@dataclass(frozen=True)
class Request:
    """A file to fetch: from `url`, into `part` while it comes, to `target` once it is whole and right."""

    url: str
    label: str
    part: Path
    target: Path
    expected: Expected
    token: str | None = None


def download(request: Request, options: FetchOptions) -> str:
    """Fetch one file, going on from its part file if there is one; returns its sha256.

    Raises DownloadError (no network, cut too often, wrong content, full disk) or Refusal (a final HTTP status).
    """
    with PartFile(request.part, request.expected, request.label) as part:
        require_space(request.part.parent, request.expected.num_bytes - part.num_bytes)
        options.progress.begin(request.label, request.expected.num_bytes)
        try:
            _receive_all(request, part, options)
        finally:
            options.progress.end()
        sha256 = part.finish(request.target)
    _etag_path(request.part).unlink(missing_ok=True)
    return sha256


def _receive_all(request: Request, part: PartFile, options: FetchOptions) -> None:
    retry, failures = options.retry, 0
    while not part.complete:
        before = part.num_bytes
        try:
            _receive(request, part, options.progress)
            return
        except Interrupted as error:
            failures = 1 if part.num_bytes - before >= retry.progress_bytes else failures + 1
            if failures >= retry.tries:
                raise DownloadError(
                    f"{request.label}: gave up after {failures} tries, the last one ended with: {error} "
                    f"({size_text(part.num_bytes)} of {size_text(request.expected.num_bytes)} are here)",
                    hint="run the command again later: it goes on from here",
                ) from error
            retry.sleep(min(max(error.wait_s, retry.first_wait_s * 2 ** (failures - 1)), MAX_WAIT_S))


def _receive(request: Request, part: PartFile, progress: Progress) -> None:
    """One connection: append what it brings. Raises Interrupted if it ends early."""
    etag = _read_etag(request.part)
    if part.num_bytes and not etag:
        part.restart()  # nothing proves that the server still has the file that this part began
    with _open_at(request, part, etag) as response:
        if response.status != 206:
            part.restart()
        elif not _continues(response, part.num_bytes, etag):
            part.restart()
            raise Interrupted("the server sent a range that does not continue the file")
        _write_etag(request.part, response.headers.get("ETag", ""))
        _check_length(response, part)
        progress.update(part.num_bytes)
        while not part.complete:
            try:
                data = response.read1(CHUNK_BYTES)  # what is there: an interrupted part keeps all that came
            except CONNECTION_ERRORS as error:
                raise Interrupted(f"the connection failed: {error or type(error).__name__}") from error
            if not data:
                raise Interrupted("the connection was cut")
            part.write(data)
            progress.update(part.num_bytes)


def _open_at(request: Request, part: PartFile, etag: str) -> HTTPResponse:
    headers = {"Accept-Encoding": "identity"}
    if part.num_bytes:
        # If-Range makes a server whose file has changed send the whole new one instead of a tail that does not fit.
        headers |= {"Range": f"bytes={part.num_bytes}-", "If-Range": etag}
    try:
        return open_url(request.url, headers, request.token)
    except Refusal as refusal:
        if refusal.status == 416 and part.num_bytes:
            part.restart()
            raise Interrupted("the server's file is shorter than what is here") from refusal
        raise


def _continues(response: HTTPResponse, start: int, etag: str) -> bool:
    served = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return served is not None and int(served[1]) == start and response.headers.get("ETag", etag) == etag


def _check_length(response: HTTPResponse, part: PartFile) -> None:
    length = response.headers.get("Content-Length", "")
    if length.isdecimal() and part.num_bytes + int(length) != part.expected.num_bytes:
        came = part.num_bytes + int(length)
        part.discard()
        raise DownloadError(
            f"{part.label}: the server offers {came} bytes, expected {part.expected.num_bytes}",
            reason="digest",
            hint="the source does not hold the file that was asked for: try another source",
        )


def _etag_path(part: Path) -> Path:
    return part.with_name(part.name + ".etag")


def _read_etag(part: Path) -> str:
    path = _etag_path(part)
    return path.read_text(encoding="latin-1") if path.exists() else ""


def _write_etag(part: Path, etag: str) -> None:
    # A weak tag does not promise equal bytes, so a part under it cannot be continued.
    strong = etag if etag.startswith('"') and len(etag) < 300 else ""
    _etag_path(part).write_text(strong, encoding="latin-1")
