"""Streams: what is counted in a window, and prompts that share nothing."""

from __future__ import annotations

from vivace.lab.streams import Prompts, Stream, quantile, window_between
from vivace.pipelines.requests import GenerateRequest

MS = 1_000_000


def stream(*token_ms: int) -> Stream:
    return Stream(GenerateRequest((1,)), token_ns=[time * MS for time in token_ms])


def test_a_window_counts_what_came_after_its_begin_and_not_after_its_end() -> None:
    window = window_between([stream(0, 10, 20, 30), stream(5, 15, 27)], 10 * MS, 20 * MS)
    assert window.tokens == 2  # at 15 and 20 ms
    assert window.seconds == 0.01
    assert sorted(window.gaps_ms) == [10.0, 10.0]
    assert window.rate == 200.0


def test_quantile_is_a_value_that_was_read() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile(range(1, 101), 0.99) == 99
    assert quantile([7.0], 0.01) == 7.0
    assert quantile([], 0.5) == 0.0


def test_prompts_are_the_same_in_every_run_and_differ_within_one() -> None:
    first, again, other = Prompts(384), Prompts(384), Prompts(384, seed=1)
    made = [first.make(8) for _ in range(3)]
    assert made == [again.make(8) for _ in range(3)]
    assert len(set(made)) == 3
    assert other.make(8) not in made
    assert all(100 <= token < 384 for prompt in made for token in prompt)
