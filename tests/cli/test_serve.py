"""`vivace serve`: flags reach the server, the key may come from the environment, a signal ends it well."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from tests.cli.conftest import FAST, TINY, Vivace
from vivace.config import ServeConfig


def test_a_served_model_answers_with_the_key_only_and_ends_at_a_signal() -> None:
    words = [sys.executable, "-m", "vivace", "serve", str(TINY), "--port", "0", *FAST]
    environment = {**os.environ, "VIVACE_API_KEY": "sk-test"}
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as server:
        try:
            assert server.stdout is not None
            address = re.search(r"http://127\.0\.0\.1:\d+", server.stdout.readline())
            assert address
            assert _ask(address[0], "sk-test") == "The capital of France is Paris."
            with pytest.raises(urllib.error.HTTPError, match="401"):
                _ask(address[0], "sk-other")
        finally:
            server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=60) == 0


def test_flags_become_the_config(vivace: Vivace, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[object, ServeConfig]] = []
    monkeypatch.setattr("vivace.serve.run.run", lambda models, config, progress: started.append((models, config)))
    monkeypatch.delenv("VIVACE_API_KEY", raising=False)
    assert (
        vivace("serve", "a", "b", "--host", "::1", "--port", "1", "--drain-seconds", "2", "--page-size", "8").code == 0
    )
    assert vivace("serve").code == 0
    (models, config), (default, plain) = started
    assert (models, config.host, config.port, config.drain_seconds) == (["a", "b"], "::1", 1, 2.0)
    assert config.engine.page_size == 8
    assert default == ["smollm2"]
    assert plain == ServeConfig()


def _ask(address: str, key: str) -> str:
    body = {"model": "tiny-llama", "messages": [{"role": "user", "content": "What is the capital of France?"}]}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    data = json.dumps({**body, "temperature": 0}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{address}/v1/chat/completions", data, headers)) as response:
        return str(json.load(response)["choices"][0]["message"]["content"])
