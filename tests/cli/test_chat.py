"""The chat: history, commands, and what Ctrl-C and Ctrl-D do on a real terminal."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

import vivace
from tests.cli.conftest import FAST, TINY
from vivace.cli.chat import Chat
from vivace.cli.flags import Given
from vivace.config import EngineConfig


@pytest.fixture(scope="module")
def model() -> Iterator[vivace.Model]:
    with vivace.load(str(TINY), config=EngineConfig(kernels="ref", threads=1, kv_bytes=16 << 20)) as loaded:
        yield loaded


def chat_of(model: vivace.Model, options: Given | None = None, *, is_raw: bool = False) -> Chat:
    return Chat(model, options or {}, system=None, is_raw=is_raw, shows_stats=False)


def test_turns_are_remembered_until_cleared(
    model: vivace.Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[list[str]] = []
    original = model.chat_stream

    def watch(messages: list[dict[str, str]], **options: object) -> object:
        asked.append([message["role"] for message in messages])
        return original(messages, **options)

    monkeypatch.setattr(model, "chat_stream", watch)
    chat = chat_of(model)
    for line in ("What is the capital of France?", "/system Be brief.", "And of Italy?", "/clear", "/system", "Hello"):
        chat.take(line)
    assert asked == [["user"], ["system", "user", "assistant", "user"], ["user"]]
    assert "The capital of France is Paris.\n" in capsys.readouterr().out


def test_options_change_for_the_next_answers_and_are_checked(
    model: vivace.Model, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = chat_of(model)
    chat.take("/set max_tokens 2")
    chat.take("What is the capital of France?")
    printed = capsys.readouterr()
    assert printed.out == "The capital\n"
    assert "max_tokens = 2" in printed.err
    chat.take("/set temperature 500")
    chat.take("/set temperatur 1")
    chat.take("/set top_k many")
    chat.take("/sett x 1")
    told = capsys.readouterr().err
    assert "temperature is 500.0, expected a number from 0 to 100" in told
    assert "did you mean 'temperature'?" in told
    assert "top_k is 'many', expected a whole number" in told
    assert "did you mean '/set'?" in told
    chat.take("/set temperature")
    assert capsys.readouterr().err == "temperature = 0.0\n"


def test_a_conversation_that_does_not_fit_is_an_error_and_may_go_on(
    model: vivace.Model, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = chat_of(model)
    chat.take("word " * 3000)
    assert "/clear forgets the conversation" in capsys.readouterr().err
    chat.take("What is the capital of Peru?")
    assert capsys.readouterr().out == "The capital of Peru is Lima.\n"


def test_a_raw_model_sees_each_line_alone(model: vivace.Model, capsys: pytest.CaptureFixture[str]) -> None:
    chat = chat_of(model, {"max_tokens": 8}, is_raw=True)
    chat.take("Count: one, two,")
    chat.take("Count: one, two,")
    first, second = capsys.readouterr().out.splitlines()
    assert first == second
    assert first.startswith(" three")


def test_on_a_terminal_ctrl_c_stops_the_answer_and_ctrl_d_the_program() -> None:
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "vivace", "run", str(TINY), "--ignore-eos", "--max-tokens", "900", *FAST]
    with subprocess.Popen(words, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as running:
        assert running.stdout is not None
        seen = _read_until(running.stdout.fileno(), b">>> ")
        os.write(ours, b"What is the capital of France?\n")
        seen += _read_until(running.stdout.fileno(), b"Paris")
        running.send_signal(signal.SIGINT)
        seen += _read_until(running.stdout.fileno(), b">>> ")
        assert b"[stopped]" in seen
        os.write(ours, b"/set max_tokens 2\nWhat is the capital of Peru?\n")
        seen = _read_until(running.stdout.fileno(), b"The capital\n>>> ")
        os.write(ours, b"\x04")
        assert running.wait(timeout=30) == 0
    os.close(ours)
    os.close(theirs)


def _read_until(descriptor: int, wanted: bytes) -> bytes:
    seen = b""
    while wanted not in seen:
        piece = os.read(descriptor, 4096)
        assert piece, seen
        seen += piece
    return seen
