"""The life of a server and of a request: disconnects, draining, keys, request ids, and an engine that dies."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.serve.conftest import CHAT, EMBED
from tests.serve.server import TINY, Server, serving
from vivace.api.info import ModelInfo
from vivace.api.text import TextSide, load_text
from vivace.config import ServeConfig
from vivace.errors import ConfigError
from vivace.serve import run
from vivace.serve.run import announcement, public_bind_warning

SPECIAL = load_text(TINY).tokenizer.special_ids
WAIT_SECONDS = 60

# An answer that goes on until something ends it: the whole context, no end token.
LONG: dict[str, Any] = {
    "model": CHAT,
    "prompt": "One day",
    "max_tokens": 1000,
    "ignore_eos": True,
    "logit_bias": {str(token_id): -100 for token_id in SPECIAL},
}


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for something that must come true, however slow the machine is."""
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.01)


@pytest.fixture
def keyed() -> Iterator[Server]:
    with serving([TINY], api_key="secret", drain_seconds=30.0) as running:
        yield running


def test_closing_a_stream_ends_the_job_and_frees_its_pages(server: Server) -> None:
    before = server.gauges()['vivace_engine{counter="jobs_cancelled"}']
    with server.http.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as reply:
        next(reply.iter_lines())
    wait_until(lambda: server.jobs() == 0)
    after = server.gauges()
    assert after['vivace_engine{counter="jobs_cancelled"}'] == before + 1
    assert after['vivace_http_requests_total{route="/v1/completions",status="499"}'] >= 1
    assert server.taken_pages() == 0


def test_closing_a_non_streaming_request_ends_its_jobs(server: Server) -> None:
    """Case 50: within a step, counted as 499; all choices of the request end."""
    name = 'vivace_http_requests_total{route="/v1/completions",status="499"}'
    before = server.gauges()
    with httpx.Client(base_url=server.url) as client, pytest.raises(httpx.ReadTimeout):
        client.post("/v1/completions", json={**LONG, "n": 4}, timeout=httpx.Timeout(10, read=0.3))
    wait_until(lambda: server.jobs() == 0)
    wait_until(lambda: server.gauges().get(name, 0) == before.get(name, 0) + 1)
    cancelled = 'vivace_engine{counter="jobs_cancelled"}'
    assert server.gauges()[cancelled] == before[cancelled] + 4
    assert server.taken_pages() == 0


def test_a_stop_string_ends_the_job_in_the_engine(server: Server, client: openai.OpenAI) -> None:
    before = server.gauges()['vivace_engine{counter="units"}']
    found = client.completions.create(
        model=CHAT, prompt="One day", max_tokens=1000, logit_bias=LONG["logit_bias"], stop="e"
    )
    assert found.choices[0].finish_reason == "stop"
    wait_until(lambda: server.jobs() == 0)
    assert server.gauges()['vivace_engine{counter="units"}'] - before < 500


def test_a_full_queue_is_429_and_harms_nobody_else() -> None:
    with serving([TINY], engine={"max_jobs": 1, "max_waiting": 2}) as running:
        replies: list[httpx.Response] = []

        def ask() -> None:
            body = {**LONG, "max_tokens": 100}
            replies.append(httpx.post(f"{running.url}/v1/completions", json=body, timeout=60))

        threads = [threading.Thread(target=ask) for _ in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        refused = [reply for reply in replies if reply.status_code == 429]
        served = [reply for reply in replies if reply.status_code == 200]
        assert refused and served and len(refused) + len(served) == 24
        assert refused[0].json()["error"]["type"] == "rate_limit_error" and "retry-after" in refused[0].headers
        assert all(reply.json()["usage"]["completion_tokens"] == 100 for reply in served)
        assert running.jobs() == 0


def test_a_greedy_answer_does_not_depend_on_its_neighbours(server: Server) -> None:
    """Case 53."""
    body = {**LONG, "max_tokens": 60, "temperature": 0}
    alone = server.post("/v1/completions", body).json()["choices"][0]["text"]
    neighbours = [
        threading.Thread(target=server.post, args=("/v1/completions", {**LONG, "max_tokens": 80, "seed": seed, "n": 2}))
        for seed in range(6)
    ]
    for thread in neighbours:
        thread.start()
    found = [server.post("/v1/completions", body).json()["choices"][0]["text"] for _ in range(3)]
    for thread in neighbours:
        thread.join()
    assert found == [alone] * 3


def test_request_ids_are_echoed_and_need_not_differ(server: Server) -> None:
    """Case 33."""
    replies: list[httpx.Response] = []

    def ask() -> None:
        body = {"model": CHAT, "prompt": "One day", "max_tokens": 50}
        replies.append(
            httpx.post(f"{server.url}/v1/completions", json=body, headers={"X-Request-Id": "same"}, timeout=60)
        )

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [reply.status_code for reply in replies] == [200, 200]
    assert [reply.headers["x-request-id"] for reply in replies] == ["same", "same"]
    made = server.http.get("/v1/models").headers["x-request-id"]
    odd = server.http.get("/v1/models", headers={"X-Request-Id": "a b"}).headers["x-request-id"]
    assert made.startswith("req-") and odd.startswith("req-") and made != odd


def test_models_are_listed_and_described(server: Server, client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [CHAT, EMBED]
    assert client.models.retrieve(CHAT).object == "model"
    found = server.http.get(f"/v1/models/{CHAT}").json()
    assert found["activations"] == "f32" and len(found["digest"]) == 64 and "quality" not in found
    assert server.http.get(f"/v1/models/{EMBED}").json()["kind"] == "embed"


def test_health_and_description_answer(server: Server) -> None:
    assert server.http.get("/health/live").status_code == 200
    assert server.http.get("/health/ready").status_code == 200
    page = server.http.get("/docs")
    assert page.status_code == 200 and "/v1/chat/completions" in page.text
    schemas = server.http.get("/openapi.json").json()["components"]["schemas"]
    assert schemas["ChatRequest"]["additionalProperties"] is False


def test_every_computing_route_needs_the_key(keyed: Server) -> None:
    """Case 79: everything is closed but health and the description; a wrong route tells nothing without a key."""
    paths = keyed.http.get("/openapi.json").json()["paths"]
    is_open = {"/health/live", "/health/ready"}
    for path, methods in paths.items():
        for method in methods:
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
                reply = keyed.http.request(method.upper(), path.replace("{name}", CHAT), headers=headers)
                if path in is_open:
                    assert reply.status_code == 200
                else:
                    assert reply.status_code == 401, (path, method)
                    assert reply.json()["error"]["code"] == "invalid_api_key"
    assert keyed.http.get("/no/such/route").status_code == 401
    with pytest.raises(openai.AuthenticationError):
        keyed.client("wrong").models.list()
    assert [model.id for model in keyed.client("secret").models.list()] == [CHAT]


def test_sigterm_drains(keyed: Server) -> None:
    """Case 52: readiness 503, liveness 200, requests in flight finish, new ones get 503 with Retry-After."""
    client = keyed.client("secret")
    stream = client.completions.create(
        model=CHAT, prompt="One day", max_tokens=900, stream=True, logit_bias=LONG["logit_bias"]
    )
    next(iter(stream))
    keyed.signal(signal.SIGTERM)
    wait_until(lambda: keyed.http.get("/health/ready").status_code == 503)
    assert keyed.http.get("/health/live").status_code == 200
    body = {"model": CHAT, "prompt": "hi", "max_tokens": 1}
    refused = keyed.http.post("/v1/completions", json=body, headers={"Authorization": "Bearer secret"})
    assert refused.status_code == 503 and int(refused.headers["retry-after"]) > 0
    assert refused.json()["error"]["code"] == "shutting_down"
    chunks = list(stream)
    assert chunks[-1].choices[0].finish_reason == "length", "the answer in flight was cut"
    assert keyed.process.wait(WAIT_SECONDS) == 0


def test_a_second_sigterm_ends_at_once(keyed: Server) -> None:
    stream = keyed.client("secret").completions.create(
        model=CHAT, prompt="One day", max_tokens=1000, stream=True, n=8, logit_bias=LONG["logit_bias"]
    )
    next(iter(stream))
    keyed.signal(signal.SIGTERM)
    wait_until(lambda: keyed.http.get("/health/ready").status_code == 503)
    keyed.signal(signal.SIGTERM)
    keyed.process.wait(WAIT_SECONDS)
    with pytest.raises((httpx.HTTPError, openai.APIError)):
        for _ in stream:
            pass


def test_a_dead_engine_fails_its_requests_and_comes_back() -> None:
    with serving([TINY]) as running:
        stream = running.client().completions.create(
            model=CHAT, prompt="One day", max_tokens=1000, stream=True, n=8, logit_bias=LONG["logit_bias"]
        )
        next(iter(stream))
        os.kill(_engine_pid(running), signal.SIGKILL)
        with pytest.raises(openai.APIError, match="engine process is not running"):
            for _ in stream:
                pass
        wait_until(lambda: running.http.get("/health/ready").status_code == 503)
        assert running.http.get("/health/live").status_code == 200
        refused = running.post("/v1/completions", {"model": CHAT, "prompt": "hi", "max_tokens": 1})
        if refused.status_code != 200:  # unless it is back already
            assert refused.status_code == 503 and refused.json()["error"]["code"] == "engine_died"
        wait_until(lambda: running.http.get("/health/ready").status_code == 200)
        reply = running.post("/v1/completions", {"model": CHAT, "prompt": "hi", "max_tokens": 1})
        assert reply.status_code == 200


def test_an_engine_that_does_not_answer_is_not_ready(server: Server) -> None:
    engine = _engine_pid(server)
    os.kill(engine, signal.SIGSTOP)
    try:
        assert server.http.get("/health/ready").status_code == 503
        assert server.http.get("/health/live").status_code == 200
    finally:
        os.kill(engine, signal.SIGCONT)
    wait_until(lambda: server.http.get("/health/ready").status_code == 200)


def test_the_engine_ends_with_the_http_process() -> None:
    with serving([TINY]) as running:
        engine = _engine_pid(running)
        running.process.kill()
        running.process.wait()
        wait_until(lambda: not _is_alive(engine))


def test_a_model_that_cannot_be_loaded_ends_the_server_with_the_reason() -> None:
    with pytest.raises(AssertionError, match="there is no file or folder"), serving(["/no/such/model"]):
        pass
    with pytest.raises(AssertionError, match="page_size is 0"), serving([TINY], engine={"page_size": 0}):
        pass


@pytest.mark.parametrize(
    ("host", "hint"), [("no.such.host.invalid", "address of this machine"), ("192.0.2.1", "address of this machine")]
)
def test_an_address_that_is_not_here_is_not_a_matter_of_the_port(host: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"cannot listen on {host}") as caught:
        run.run([str(TINY)], ServeConfig(host=host))
    assert hint in caught.value.hint


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}") as caught:
            run.run([str(TINY)], ServeConfig(port=port))
    assert "choose another --port" in caught.value.hint


@pytest.mark.parametrize(
    ("host", "key", "warns"),
    [
        ("127.0.0.1", None, False),
        ("localhost", None, False),
        ("::1", None, False),
        ("0.0.0.0", None, True),
        ("192.168.1.5", None, True),
        ("example.org", None, True),
        ("0.0.0.0", "key", False),
    ],
)
def test_a_public_bind_without_a_key_warns(host: str, key: str | None, warns: bool) -> None:
    """Case 82."""
    assert ServeConfig().host == "127.0.0.1"
    assert (public_bind_warning(ServeConfig(host=host, api_key=key)) is not None) == warns


def test_the_announcement_names_a_request_that_the_first_model_can_answer() -> None:
    chat = load_text(TINY)
    decoder, encoder = ModelInfo("a", "generate", 10, 10), ModelInfo("b", "embed", 10, 10, dimensions=4)
    base = TextSide(chat.tokenizer)
    for models, texts, path in (
        ({"a": decoder, "b": encoder}, {"a": chat}, "/v1/chat/completions"),
        ({"a": decoder}, {"a": base}, "/v1/completions"),
        ({"b": encoder, "a": decoder}, {"a": chat}, "/v1/embeddings"),
    ):
        text = announcement("http://127.0.0.1:1", models, texts)
        assert f"curl http://127.0.0.1:1{path} " in text and all(name in text for name in models)


def _engine_pid(server: Server) -> int:
    children = f"/proc/{server.process.pid}/task/{server.process.pid}/children"
    with open(children) as found:
        (pid,) = map(int, found.read().split())
    return pid


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
