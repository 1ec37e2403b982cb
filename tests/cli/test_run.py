"""`vivace run`: one answer on stdout and nothing else, from an argument or a pipe."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import FAST, TINY, Vivace

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."


def test_stdout_holds_the_answer_alone(vivace: Vivace) -> None:
    done = vivace("run", TINY, QUESTION, *FAST)
    assert (done.code, done.out, done.err) == (0, f"{ANSWER}\n", "")


def test_the_prompt_may_be_piped(vivace: Vivace) -> None:
    assert vivace("run", TINY, *FAST, stdin=f"{QUESTION}\n").out == f"{ANSWER}\n"


def test_raw_continues_the_prompt_without_the_template(vivace: Vivace) -> None:
    assert vivace("run", TINY, "Count: one, two,", "--raw", "--max-tokens", "8", *FAST).out.startswith(" three, four")


def test_json_holds_the_same_text_with_its_counts(vivace: Vivace) -> None:
    report = json.loads(vivace("run", TINY, QUESTION, "--json", *FAST).out)
    assert report["model"] == "tiny-llama"
    assert report["text"] == ANSWER
    assert report["finish_reason"] == "stop"
    assert report["usage"]["generated"] > 0


def test_stats_go_to_stderr(vivace: Vivace) -> None:
    done = vivace("run", TINY, QUESTION, "--stats", *FAST)
    assert done.out == f"{ANSWER}\n"
    assert "prompt" in done.err
    assert "(stop)" in done.err


def test_a_seed_repeats_a_draw_and_another_seed_does_not(vivace: Vivace) -> None:
    def draw(seed: int) -> str:
        words = ("--temperature", "3", "--max-tokens", "24", "--seed", str(seed))
        return vivace("run", TINY, QUESTION, *words, *FAST).out

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_a_stop_string_ends_the_answer_and_is_not_printed(vivace: Vivace) -> None:
    assert vivace("run", TINY, QUESTION, "--stop", " France", *FAST).out == "The capital of\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((" ",), "the prompt is empty"),
        ((QUESTION, "--temperature", "-1"), "temperature is -1.0, expected a number from 0"),
        ((QUESTION, "--max-tokens", "5000"), "the context holds 1024 tokens"),
        (("word " * 3000,), "the context holds 1024 tokens"),
        ((QUESTION, "--raw", "--system", "Be brief."), "a raw prompt has no place for a system message"),
        ((QUESTION, "--logit-bias", "999999=1"), "logit_bias holds the token id 999999"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_printed(
    vivace: Vivace, words: tuple[str, ...], told: str
) -> None:
    done = vivace("run", TINY, *words, *FAST)
    assert (done.code, done.out) == (1, "")
    assert told in done.err
    assert "hint:" in done.err


def test_a_model_for_vectors_is_refused(vivace: Vivace, tiny_encoder: object) -> None:
    done = vivace("run", str(tiny_encoder), QUESTION, *FAST)
    assert done.code == 1
    assert "is for 'embed', not for 'generate'" in done.err
