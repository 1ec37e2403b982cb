"""A hub on the loopback interface: repositories of bytes, the calls that Vivace makes, and faults on order."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Repo:
    """A repository. `token` is what a client must send for its files, "" if anyone may read them."""

    files: dict[str, bytes]
    commit: str = COMMIT
    licence: str = "mit"
    token: str = ""
    listed: dict[str, bytes] | None = None  # what the listing claims, when it differs from what is served


@dataclass
class Fault:
    """What goes wrong with one request for a file. `cut_after` closes the connection after so many body bytes."""

    cut_after: int | None = None
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    ignore_range: bool = False
    wrong_range: bool = False
    etag: str = ""
    body: bytes | None = None
    no_length: bool = False
    redirect: str = ""
    before: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class Seen:
    """A request that came in."""

    path: str
    range: str
    authorization: str


class FakeHub:
    """A context manager; `url` is the endpoint. `faults[path]` are used up one a request, in order."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.faults: dict[str, deque[Fault]] = {}
        self.seen: list[Seen] = []
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self) -> FakeHub:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def break_next(self, path: str, *faults: Fault) -> None:
        self.faults.setdefault(path, deque()).extend(faults)

    def asked(self, path: str) -> list[Seen]:
        """The requests for one file of any repository."""
        return [seen for seen in self.seen if "/resolve/" in seen.path and seen.path.endswith("/" + path)]


class _Server(ThreadingHTTPServer):
    def __init__(self, hub: FakeHub) -> None:
        self.hub = hub
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    @property
    def hub(self) -> FakeHub:
        assert isinstance(self.server, _Server)
        return self.server.hub

    def do_GET(self) -> None:
        self.hub.seen.append(Seen(self.path, self.headers.get("Range", ""), self.headers.get("Authorization", "")))
        url = urlsplit(self.path)
        if url.path == "/api/models":
            wanted = parse_qs(url.query)["search"][0].lower()
            self._json([{"id": name} for name in self.hub.repos if wanted[:3] in name.lower()])
        elif url.path.startswith("/api/models/"):
            self._describe(url.path.removeprefix("/api/models/"))
        else:
            self._serve(unquote(url.path.lstrip("/")))

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _describe(self, path: str) -> None:
        name, _, revision = path.partition("/revision/")
        repo = self.hub.repos.get(name)
        if repo is None:
            self._fail(401, "RepoNotFound")
        elif unquote(revision) not in ("main", repo.commit):
            self._fail(404, "RevisionNotFound")
        else:
            listed = repo.files if repo.listed is None else repo.listed
            siblings = [_sibling(name, data) for name, data in listed.items()]
            card = {"license": repo.licence} if repo.licence else None
            self._json({"sha": repo.commit, "siblings": siblings, "cardData": card, "pipeline_tag": "text-generation"})

    def _serve(self, path: str) -> None:
        name, _, rest = path.partition("/resolve/")
        repo, file = self.hub.repos.get(name), rest.partition("/")[2]
        waiting = self.hub.faults.get(file)
        fault = waiting.popleft() if waiting else Fault()
        fault.before()
        if repo is None:
            self._fail(401, "RepoNotFound")
        elif fault.status:
            self._fail(fault.status, "", fault.headers)
        elif fault.redirect:
            self._fail(302, "", {"Location": fault.redirect})
        elif repo.token and self.headers.get("Authorization") != f"Bearer {repo.token}":
            self._fail(403 if self.headers.get("Authorization") else 401, "GatedRepo")
        elif file not in repo.files:
            self._fail(404, "EntryNotFound")
        else:
            self._send_file(repo.files[file] if fault.body is None else fault.body, fault)

    def _send_file(self, data: bytes, fault: Fault) -> None:
        etag = fault.etag or f'"{hashlib.sha256(data).hexdigest()}"'
        start, asked = 0, self.headers.get("Range", "")
        fresh = self.headers.get("If-Range", etag) == etag
        if asked and not fault.ignore_range and (fresh or fault.wrong_range):
            start = int(asked.removeprefix("bytes=").rstrip("-"))
        if start >= len(data) > 0:
            self._fail(416, "")
            return
        body = data[start:]
        self.send_response(206 if start else 200)
        self.send_header("ETag", etag)
        if not fault.no_length:
            self.send_header("Content-Length", str(len(body)))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        with suppress(ConnectionError):  # a client that was killed or has seen enough
            self.wfile.write(body if fault.cut_after is None else body[: fault.cut_after])
        self.close_connection = True

    def _fail(self, status: int, code: str, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {**({"X-Error-Code": code} if code else {}), **(headers or {})}.items():
            self.send_header(key, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _json(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _sibling(path: str, data: bytes) -> dict[str, Any]:
    """A file as the hub lists it: big ones by sha256 under `lfs`, small ones by their git object name."""
    blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    sibling: dict[str, Any] = {"rfilename": path, "size": len(data), "blobId": blob}
    if path.endswith((".safetensors", ".gguf")):
        sibling["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
    return sibling


def catalog_text(files: dict[str, bytes], *sources: str) -> str:
    """A catalog.toml with the model `tiny`, made of `files`; each source is the body of a [[sources]] table."""
    listed = ",".join(
        f'{{path="{path}", bytes={len(data)}, sha256="{hashlib.sha256(data).hexdigest()}"}}'
        for path, data in files.items()
    )
    tables = "".join(f"\n[[models.tiny.sources]]\n{source}\n" for source in sources)
    return (
        'default = "tiny"\n[models.tiny]\ntitle = "Tiny"\nkind = "generate"\nlicence = "MIT"\n'
        f'licence_url = "https://example.org"\nfiles = [{listed}]\n{tables}'
    )
