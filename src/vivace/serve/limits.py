"""What a request body must satisfy before anything is made of it: size, media type, UTF-8, and JSON without surprises.

Accepted is one JSON object (RFC 8259) with these bounds: no key twice in an object, no NaN or infinity, no lone
surrogate, a bounded depth. Everything else is the client's fault: status 400, 413 or 415, never 5xx.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from typing import Any, NoReturn

from fastapi import HTTPException, Request
from starlette.requests import ClientDisconnect

from vivace.errors import BodyTooLarge, Cancelled, InvalidRequest

LONGEST_PAUSE = 30.0  # seconds between two parts of a body
MAX_KEYS = 4096  # of one object; no field of a body may have so many

# A string without its end matches up to the end of the text, so that the scan stays linear.
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89abAB]|\\u[dD][c-fC-F]")


async def read_json_bytes(request: Request, max_bytes: int) -> bytes:
    """The body of `request`, which is declared to be JSON. Raises BodyTooLarge, Cancelled, or HTTPException 415."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # A page of another origin can post text/plain or a form to a loopback server unasked, JSON only after a preflight.
    if media_type != "application/json":
        raise HTTPException(
            415,
            f"content type is '{media_type or 'missing'}', expected application/json"
            " (hint: send the header 'Content-Type: application/json')",
        )
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise HTTPException(415, f"content encoding is '{encoding[:40]}', expected none (hint: send plain JSON)")
    return await read_body(request, max_bytes)


async def read_body(request: Request, max_bytes: int, pause_seconds: float = LONGEST_PAUSE) -> bytes:
    """All bytes of the body; raises BodyTooLarge as soon as it is known to be over `max_bytes`, Cancelled if
    the client goes away, HTTPException 408 if nothing comes for `pause_seconds`."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and len(declared) < 20 and int(declared) > max_bytes:
        raise _too_large(int(declared), max_bytes)
    chunks, total = [], 0
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(pause_seconds) as patience:
            async for chunk in request.stream():
                patience.reschedule(loop.time() + pause_seconds)
                total += len(chunk)
                if total > max_bytes:
                    raise _too_large(total, max_bytes)
                chunks.append(chunk)
    except ClientDisconnect:
        raise Cancelled("the client closed the connection before its request was complete") from None
    except TimeoutError:
        message = f"no more of the body came for {pause_seconds:g} s, {total} bytes did (hint: send the request again)"
        raise HTTPException(408, message, headers={"Connection": "close"}) from None
    return b"".join(chunks)


def parse_json(body: bytes, max_depth: int) -> dict[str, Any]:
    """The JSON object in `body`. Raises InvalidRequest that says where and what is wrong."""
    if not body.strip():
        raise _bad_json("the body is empty")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"the body is not UTF-8: byte {error.start} is 0x{body[error.start]:02x}", hint="encode JSON as UTF-8"
        ) from None
    _check_depth(text, max_depth)
    try:
        data = json.loads(text, object_pairs_hook=_object, parse_constant=_refuse_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise _bad_json(f"{error.msg} at line {error.lineno} column {error.colno}") from None
    except (RecursionError, ValueError):  # ValueError: an integer of thousands of digits
        raise _bad_json("a value is too deep or too long to read") from None
    if not isinstance(data, dict):
        raise _bad_json(f"the body is {_kind(data)}, expected an object")
    if _ESCAPED_SURROGATE.search(text):
        _check_surrogates(data, "")
    return data


def _check_depth(text: str, max_depth: int) -> None:
    if text.count("[") + text.count("{") <= max_depth:
        return
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        mark = match.group()
        if mark in "[{":
            depth += 1
            if depth > max_depth:
                raise InvalidRequest(
                    f"the JSON body is nested deeper than {max_depth} levels", hint="flatten the request"
                )
        elif mark in "]}":
            depth -= 1


def _check_surrogates(value: Any, where: str) -> None:
    # Depth is bounded already, so recursion is safe.
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"{where or 'a key'} holds half a character (lone surrogate U+{ord(value[error.start]):04X})",
                field=where or None,
                hint="write characters beyond U+FFFF as a pair of escapes, or plainly as UTF-8",
            ) from None
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_surrogates(key, "")
            _check_surrogates(item, f"{where}.{key}" if where else key)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_surrogates(item, f"{where}.{index}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MAX_KEYS:
        raise InvalidRequest(f"an object has {len(pairs)} keys, at most {MAX_KEYS} are read", hint="send fewer")
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        shown = twice.encode("utf-8", "replace").decode()
        raise InvalidRequest(f"the key '{shown}' stands twice in one object", field=shown, hint="keep one of them")
    return found


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise InvalidRequest(f"the number {digits[:40]} is too large", hint="use numbers below 1e308")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidRequest(f"{name} is not a JSON number", hint="leave the field out for its default")


def _bad_json(problem: str) -> InvalidRequest:
    return InvalidRequest(f"the body is not a valid JSON request: {problem}", hint="send one JSON object")


def _too_large(size: int, limit: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"the body has {size} bytes or more, at most {limit} are accepted",
        hint="send less, or start the server with a higher limit",
    )


def _kind(value: object) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")
