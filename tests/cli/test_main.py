"""The program as a whole: help at once, exit statuses, errors without tracebacks."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import FAST, TINY, Vivace
from vivace import __version__
from vivace.cli import main as program

VERBS = [verb.__name__ for verb in program.VERBS]
HEAVY = ("torch", "numpy", "transformers", "fastapi", "uvicorn", "huggingface_hub")


def test_help_of_every_verb_and_the_list_of_models_load_nothing_heavy() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from vivace.cli.main import make_app\n"
        f"for words in [[], *([verb] for verb in {VERBS})]:\n"
        "    assert CliRunner().invoke(make_app(), [*words, '--help']).exit_code == 0, words\n"
        "assert CliRunner().invoke(make_app(), ['models']).exit_code == 0\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_help_names_every_verb_and_each_has_help(vivace: Vivace) -> None:
    text = vivace("--help").out
    for verb in VERBS:
        assert f" {verb} " in text
        assert f"vivace {verb}" in vivace(verb, "--help").out.replace("root", "vivace")


def test_version_is_printed(vivace: Vivace) -> None:
    assert vivace("--version").out == f"vivace {__version__}\n"


def test_an_error_is_a_message_and_a_hint_on_stderr_with_status_1(vivace: Vivace) -> None:
    done = vivace("tokenize", "smolm2", "x")
    assert done.code == 1
    assert done.out == ""
    assert "error: no model 'smolm2'" in done.err
    assert "hint: did you mean 'smollm2'?" in done.err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("rnu",), "'run'"),
        (("run", "smollm2", "x", "--temprature", "1"), "--temperature"),
        (("serve", "--prot", "1"), "--port"),
        (("run", "smollm2", "What", "is"), "quotes"),
    ],
)
def test_wrong_usage_ends_with_status_2_and_names_the_nearest(vivace: Vivace, words: tuple[str], named: str) -> None:
    done = vivace(*words)
    assert done.code == 2
    assert named in done.err


def test_a_fault_of_ours_shows_no_traceback_unless_asked(vivace: Vivace, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a broken part")

    monkeypatch.setattr("vivace.weights.catalog.resolve", fail)
    done = vivace("tokenize", TINY, "x")
    assert done.code == 1
    assert "error: AssertionError: a broken part" in done.err
    assert "--debug" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("verb", ["run", "tokenize", "embed"])
def test_text_that_is_not_utf_8_is_the_callers_mistake(verb: str, tiny_encoder: Path) -> None:
    model = tiny_encoder if verb == "embed" else TINY
    piped = subprocess.run([sys.executable, "-m", "vivace", verb, model], input=b"caf\xe9\n", capture_output=True)
    given = subprocess.run([sys.executable, "-m", "vivace", verb, model, b"caf\xe9"], capture_output=True)
    for done in (piped, given):  # the locale decides whether Python refuses the byte or makes a surrogate of it
        assert done.returncode == 1
        assert b"UTF-8" in done.stderr
        assert b"a fault of Vivace" not in done.stderr


def test_a_closed_standard_input_is_empty() -> None:
    words = ["sh", "-c", 'exec "$@" <&- 2>&1 >&-', "sh", sys.executable, "-m", "vivace", "run", str(TINY)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 1 and "the prompt is empty" in done.stdout


def test_closed_outputs_do_not_hinder_an_answer() -> None:
    words = ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", sys.executable, "-m", "vivace", "run", str(TINY), "x", "--stats"]
    assert subprocess.run([*words, "--max-tokens", "1", *FAST]).returncode == 0


@pytest.mark.parametrize("verb", ["models", "pull", "info"])
def test_a_misspelt_variable_is_an_error_for_every_verb(
    vivace: Vivace, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIVACE_CASHE", "/somewhere")
    done = vivace(verb)
    assert done.code == 1 and "VIVACE_CASHE" in done.err and "did you mean 'VIVACE_CACHE'" in done.err


def test_a_full_disk_is_said_to_be_full() -> None:
    message, hint = program._explain(OSError(errno.ENOSPC, "No space left on device"))
    assert "No space left" in message and hint == "free some space"


def test_debug_keeps_the_traceback() -> None:
    words = [sys.executable, "-m", "vivace", "--debug", "tokenize", "smolm2", "x"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "did you mean 'smollm2'" in done.stderr


def test_a_reader_that_goes_away_ends_the_program_quietly() -> None:
    words = [sys.executable, "-m", "vivace", "run", str(TINY), "--raw", "Count: one", "--ignore-eos", *FAST]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.read(1)
        running.stdout.close()
        assert "Traceback" not in running.stderr.read()


@pytest.mark.parametrize("verb", ["serve", "pull"])
def test_usage_shows_names_that_may_be_left_out_in_single_brackets(vivace: Vivace, verb: str) -> None:
    assert f"{verb} [OPTIONS] [MODEL]... " in vivace(verb, "--help").out.replace("\n", " ")
