"""Bad input: the official error object, the right status, the field by name and a hint; nothing left behind."""

from __future__ import annotations

import gzip
import json
import threading
import time
from typing import Any

import httpx
import openai
import pytest

from tests.serve.conftest import CHAT, EMBED
from tests.serve.server import Server

CHAT_BODY: dict[str, Any] = {"model": CHAT, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
TEXT_BODY: dict[str, Any] = {"model": CHAT, "prompt": "hi", "max_tokens": 1}
EMBED_BODY: dict[str, Any] = {"model": EMBED, "input": "hi"}
ROUTES = {
    "/v1/chat/completions": CHAT_BODY,
    "/v1/completions": TEXT_BODY,
    "/v1/embeddings": EMBED_BODY,
    "/tokenize": {"model": CHAT, "prompt": "hi"},
    "/detokenize": {"model": CHAT, "tokens": [1]},
}

# Field -> values of a wrong type or out of range, for every route that has the field.
SAMPLING: dict[str, list[Any]] = {
    "temperature": [-0.1, 2.1, "1", True, [], {}],
    "top_p": [-0.1, 1.1, "1", True],
    "min_p": [-1, 2, "x"],
    "top_k": [-1, 1.5, "1", True],
    "n": [0, 129, 1.0, "1", True, -1],
    "max_tokens": [-1, 1.5, "1", True],
    "presence_penalty": [-2.1, 2.1, "0"],
    "frequency_penalty": [-2.1, 2.1, [0]],
    "repetition_penalty": [0, -1, 11, "1"],
    "logit_bias": [{"1": 101}, {"1": -101}, {"1": "x"}, [1], {"191222": -100}, {"AI": -100}, {"-1": 1}, {"": 1}],
    "seed": [1.5, "1", True, 2**63, -(2**63) - 1],
    "stop": ["", [""], 5, [5], ["x"] * 17, "x" * 1025],
    "stop_token_ids": [[-1], [384], [1.5], "1", [True]],
    "stream": ["true", 1, 0],
    "stream_options": [{"include_usage": True}, 5],
    "ignore_eos": ["no", 1],
    "min_tokens": [-1, "1", 2],
    "user": [5, ["a"]],
    "model": [5, "", None, ["a"]],
}
CHAT_ONLY: dict[str, list[Any]] = {
    "messages": [[], "hi", None, {}, [5], [{"role": "user"}], [{"role": "nobody", "content": "x"}]],
    "logprobs": [1, "true"],
    "top_logprobs": [1, 21, -1],
    "max_completion_tokens": [-1, "5"],
    "metadata": [5, {"a": 5}],
    "service_tier": ["best", 5],
    "reasoning_effort": [5],
    "verbosity": ["loud"],
    "tools": [[{"type": "function"}], "x", 5],
    "tool_choice": ["required", {"type": "function"}],
    "response_format": [{"type": "json_object"}, "json"],
    "audio": [{"voice": "x", "format": "wav"}],
    "modalities": [["audio"]],
    "functions": [[{"name": "f"}]],
    "function_call": ["auto"],
    "web_search_options": [{}],
    "continue_final_message": ["x"],
    "chat_template_kwargs": [5, {"a": [1]}],
}
TEXT_ONLY: dict[str, list[Any]] = {
    "prompt": [[], [[]], [384], [-1], [[1], ["a"]], [1, "a"], 5, None, {}, [True], ""],
    "logprobs": [21, -1, True, "1"],
    "best_of": [2, 0, "1"],
    "echo": [1, "true"],
    "suffix": ["tail"],
}
EMBEDDING: dict[str, list[Any]] = {
    "input": [[], [[]], "", ["a", ""], [10**6], 5, None, [None], [[1], "a"], [1.5]],
    "encoding_format": ["hex", 5],
    "dimensions": [0, -1, 1.5, "8", True],
    "user": [5],
    "prompt_name": ["query", 5],
    "truncate": [1],
}


def _cases() -> list[Any]:
    tables = {
        "/v1/chat/completions": SAMPLING | CHAT_ONLY,
        "/v1/completions": SAMPLING | TEXT_ONLY,
        "/v1/embeddings": EMBEDDING,
        "/tokenize": {"prompt": [5, None, ["a"]], "parse_special": [1, "yes"], "add_special_tokens": ["x"]},
        "/detokenize": {"tokens": [5, "a", [-1], [384], [1.5], [True]]},
    }
    return [
        pytest.param(path, field, value, id=f"{path.rpartition('/')[2]}-{field}-{json.dumps(value)[:24]}")
        for path, table in tables.items()
        for field, values in table.items()
        for value in values
    ]


def _check(reply: Any, status: int = 400) -> dict[str, Any]:
    """The official error object with a hint; returns it."""
    assert reply.status_code == status, reply.text
    error: dict[str, Any] = reply.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert "hint: " in error["message"] and error["code"]
    assert error["type"] == ("invalid_request_error" if status < 500 else "server_error")
    return error


@pytest.mark.parametrize(("path", "field", "value"), _cases())
def test_every_field_of_a_wrong_type_or_range_is_refused_by_name(
    server: Server, path: str, field: str, value: Any
) -> None:
    error = _check(server.post(path, {**ROUTES[path], field: value}))
    assert field in error["message"]
    assert (error["param"] or "").split(".")[0] == field


@pytest.mark.parametrize(("path", "body"), ROUTES.items())
def test_the_bodies_of_this_file_are_otherwise_right(server: Server, path: str, body: dict[str, Any]) -> None:
    assert server.post(path, body).status_code == 200


@pytest.mark.parametrize(
    ("path", "field", "nearest"),
    [
        ("/v1/chat/completions", "temprature", "temperature"),
        ("/v1/chat/completions", "max_token", "max_tokens"),
        ("/v1/completions", "stop_tokens_ids", "stop_token_ids"),
        ("/v1/embeddings", "dimension", "dimensions"),
        ("/tokenize", "promt", "prompt"),
        ("/v1/completions", "messages", ""),
        # Case 45: fields that steer the engine from within are nobody's business.
        ("/v1/chat/completions", "tenant", ""),
        ("/v1/chat/completions", "kv_transfer_params", ""),
        ("/v1/completions", "prompt_logprobs_root", ""),
    ],
)
def test_an_unknown_field_is_refused_with_the_nearest_name(server: Server, path: str, field: str, nearest: str) -> None:
    error = _check(server.post(path, {**ROUTES[path], field: 1}))
    assert error["param"] == field
    assert f"unknown field '{field}'" in error["message"]
    assert nearest in error["message"]


@pytest.mark.parametrize("path", ROUTES)
def test_an_unknown_model_is_404_with_the_nearest_name(server: Server, path: str) -> None:
    error = _check(server.post(path, {**ROUTES[path], "model": "tiny-lama"}), 404)
    assert error["code"] == "model_not_found" and error["param"] == "model"
    assert CHAT in error["message"]


def test_a_model_is_not_used_for_what_it_does_not_do(server: Server) -> None:
    for path, other in (("/v1/chat/completions", EMBED), ("/v1/completions", EMBED), ("/v1/embeddings", CHAT)):
        assert _check(server.post(path, {**ROUTES[path], "model": other}))["param"] == "model"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_too_long_a_prompt_is_refused_with_all_numbers(server: Server, path: str) -> None:
    """Case 32: context, prompt and max_tokens stand in the message."""
    text = "word " * 1200
    body = (
        {**CHAT_BODY, "messages": [{"role": "user", "content": text}]}
        if "chat" in path
        else {**TEXT_BODY, "prompt": text}
    )
    error = _check(server.post(path, body))
    assert error["code"] == "context_length_exceeded"
    error = _check(server.post("/v1/completions", {**TEXT_BODY, "prompt": [5] * 8, "max_tokens": 1017}))
    assert all(number in error["message"] for number in ("1024", " 8", "1017", "1016"))
    assert server.post("/v1/completions", {**TEXT_BODY, "prompt": [5] * 8, "max_tokens": 1}).status_code == 200


BROKEN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "spaces": (b"  \n", "empty"),
    "no JSON": (b"model=x", "line 1"),
    "cut off": (b'{"model": "x', "line 1"),
    "trailing comma": (b'{"model": "x",}', "line 1"),
    "an array": (b"[1, 2]", "array"),
    "a string": (b'"x"', "string"),
    "null": (b"null", "null"),
    "not UTF-8": (b'{"model": "\xff\xfe"}', "UTF-8"),
    "UTF-16": ('{"model": "x"}'.encode("utf-16"), "UTF-8"),
    "NaN": (b'{"temperature": NaN}', "NaN"),
    "infinity": (b'{"temperature": Infinity}', "Infinity"),
    "minus infinity": (b'{"temperature": -Infinity}', "-Infinity"),
    "overflow": (b'{"temperature": 1e999}', "1e999"),
    "thousands of digits": (b'{"seed": ' + b"9" * 10000 + b"}", "too long"),
    "lone surrogate": (b'{"model": "\\ud800"}', "surrogate"),
    "low surrogate": (b'{"messages": [{"role": "user", "content": "a\\udc00b"}]}', "surrogate"),
    "surrogate key": (b'{"\\ud800": 1}', "surrogate"),
    "a key twice": (b'{"model": "a", "model": "b"}', "twice"),
    "a key twice inside": (b'{"messages": [{"role": "user", "role": "system"}]}', "twice"),
    "deep array": (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested"),
    "deep object": (b'{"a": ' * 100_000 + b"1" + b"}" * 100_000, "nested"),
    "open brackets": (b"[" * 100_000, "nested"),
    "zero byte": (b'{"model": "\x00"}', "line 1"),
    "byte order mark": (b'\xef\xbb\xbf{"model": "x"}', "BOM"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_body_is_400_and_says_where(server: Server, name: str) -> None:
    body, words = BROKEN[name]
    reply = server.http.post("/v1/chat/completions", content=body, headers={"Content-Type": "application/json"})
    assert words in _check(reply)["message"]


def test_brackets_within_strings_are_no_depth(server: Server) -> None:
    body = {**CHAT_BODY, "messages": [{"role": "user", "content": '["\\' * 60}]}
    assert server.post("/v1/chat/completions", body).status_code == 200


def test_a_body_over_the_limit_is_413(server: Server) -> None:
    big = b'{"model": "' + b"x" * (9 << 20) + b'"}'
    headers = {"Content-Type": "application/json"}
    declared = server.http.post("/v1/completions", content=big, headers=headers)
    chunked = server.http.post("/v1/completions", content=iter([big[: 5 << 20], big[5 << 20 :]]), headers=headers)
    for reply in (declared, chunked):
        assert _check(reply, 413)["code"] == "body_too_large"
        assert str(8 << 20) in reply.text


def test_a_long_body_is_tokenized_beside_the_others(server: Server) -> None:
    text = "hello world " * 5000
    reply = server.post("/tokenize", {"model": CHAT, "prompt": text})
    assert reply.json()["count"] > 5000
    assert _check(server.post("/v1/completions", {**TEXT_BODY, "prompt": text}))["code"] == "context_length_exceeded"


MIB = 1 << 20
HOSTILE = {
    "empty lists": ("/v1/completions", b'{"model": "tiny-llama", "prompt": [' + b"[]," * (2 * MIB) + b"[]]}"),
    "emoji": ("/v1/completions", b'{"model": "tiny-llama", "prompt": [' + b'"\\ud83d\\ude00",' * (MIB // 3) + b'"x"]}'),
    "keys": ("/v1/completions", b"{" + b",".join(b'"k%d": 1' % key for key in range(MIB // 2)) + b"}"),
    "messages": ("/v1/chat/completions", b'{"model": "tiny-llama", "messages": [' + b"{}," * (2 * MIB) + b"{}]}"),
    "inputs": ("/v1/embeddings", b'{"model": "tiny-bert", "input": [' + b'"a",' * (3 * MIB // 2) + b"5]}"),
    "ids": ("/detokenize", b'{"model": "tiny-llama", "tokens": [' + b'"a",' * (3 * MIB // 2) + b"5]}"),
    "text": ("/v1/completions", b'{"model": "tiny-llama", "prompt": "' + b"hello world " * (MIB // 8) + b'"}'),
    "known ids": ("/detokenize", b'{"model": "tiny-llama", "tokens": [' + b"70," * MIB + b"70]}"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_others_are_served_while_a_costly_body_is_read(server: Server, name: str) -> None:
    path, body = HOSTILE[name]
    replies: list[httpx.Response] = []

    def send() -> None:
        headers = {"Content-Type": "application/json"}
        replies.append(httpx.post(f"{server.url}{path}", content=body, headers=headers, timeout=60))

    sender = threading.Thread(target=send)
    sender.start()
    waits = []
    while sender.is_alive():
        started = time.monotonic()
        assert server.http.get("/health/live").status_code == 200
        waits.append(time.monotonic() - started)
    sender.join()
    assert replies[0].status_code == (200 if name == "known ids" else 400)
    started = time.monotonic()
    json.loads(body)
    reading = time.monotonic() - started
    # Plain reading holds the interpreter's lock; nobody waits much longer than that, or for nearly all of the work.
    assert max(waits) < max(10 * reading, 0.8 * sum(waits))


@pytest.mark.parametrize(
    ("path", "field", "count"), [("/v1/embeddings", "input", 2049), ("/v1/completions", "prompt", 2049)]
)
def test_too_many_inputs_are_refused_by_their_number(server: Server, path: str, field: str, count: int) -> None:
    message = _check(server.post(path, {**ROUTES[path], field: ["x"] * count}))["message"]
    assert f"'{field}' is a list of {count}" in message and "at most 2048 items" in message


def test_what_is_missing_is_to_be_added(server: Server) -> None:
    message = _check(server.post("/v1/chat/completions", {**CHAT_BODY, "messages": [{"role": "user"}]}))["message"]
    assert "hint: add 'content'" in message


def test_a_compressed_body_is_415(server: Server) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    body = gzip.compress(json.dumps(TEXT_BODY).encode())
    reply = server.http.post("/v1/completions", content=body, headers=headers)
    assert "content encoding is 'gzip'" in _check(reply, 415)["message"]


def test_only_json_is_taken(server: Server) -> None:
    body = json.dumps(TEXT_BODY).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        reply = server.http.post("/v1/completions", content=body, headers={"Content-Type": kind})
        assert _check(reply, 415)["code"] == "unsupported_media_type"
    charset = {"Content-Type": "application/json; charset=utf-8"}
    assert server.http.post("/v1/completions", content=body, headers=charset).status_code == 200


def test_unknown_routes_and_methods_have_the_error_object_too(server: Server) -> None:
    assert _check(server.http.get("/v1/nothing"), 404)["code"] == "not_found"
    assert _check(server.http.put("/v1/models"), 405)["code"] == "method_not_allowed"
    assert _check(server.http.get("/v1/chat/completions"), 405)["code"] == "method_not_allowed"


def test_an_error_before_the_first_token_of_a_stream_has_its_own_status(server: Server) -> None:
    reply = server.post("/v1/chat/completions", {**CHAT_BODY, "stream": True, "logit_bias": {"999": 1}})
    assert _check(reply)["param"] == "logit_bias"


def test_the_official_client_raises_its_own_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(**{**CHAT_BODY, "temperature": 3})
    assert bad.value.param == "temperature" and bad.value.code == "invalid_value"
    with pytest.raises(openai.NotFoundError) as missing:
        client.models.retrieve("nothing")
    assert missing.value.code == "model_not_found"


def test_nothing_is_left_behind(server: Server) -> None:
    """Runs last in this file: no job and no page is held after all these refusals."""
    assert server.jobs() == 0
    assert server.taken_pages() == 0
