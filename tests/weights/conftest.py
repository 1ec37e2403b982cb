"""The loopback hub as a fixture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.weights.fake_hub import FakeHub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """An empty hub that downloads are directed to, whatever the environment says of the real one."""
    with FakeHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "VIVACE_OFFLINE"):
            monkeypatch.delenv(name, raising=False)
        yield hub
