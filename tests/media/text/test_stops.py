"""Stop strings: chunk-invariant, nothing of a stop string shown, nothing held that could not begin one."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivace.errors import InvalidRequest
from vivace.media.text.stops import StopMatch, StopMatcher

_TEXT = st.text("abc", max_size=40)
_STOPS = st.lists(st.text("abc", min_size=1, max_size=6), max_size=4)
_CUTS = st.lists(st.integers(0, 40), max_size=8)


def _run(stops: list[str], chunks: list[str], *, include_stop: bool = False) -> tuple[str, StopMatch | None]:
    matcher = StopMatcher(stops, include_stop=include_stop)
    shown = "".join(matcher.feed(chunk) for chunk in chunks)
    return shown + matcher.flush(), matcher.match


def _chunks(text: str, cuts: list[int]) -> list[str]:
    borders = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    return [text[start:end] for start, end in itertools.pairwise(borders)]


def _search(stops: list[str], text: str) -> StopMatch | None:
    """The rule, tried plainly: the stop string that is complete first, the longest of those complete together."""
    ends = [(end, -len(stop), stop) for end in range(len(text) + 1) for stop in stops if text[:end].endswith(stop)]
    if not ends:
        return None
    end, _, stop = min(ends)
    return StopMatch(stop, end - len(stop), end)


@given(_STOPS, _TEXT, _CUTS, st.booleans())
def test_any_cut_gives_what_plain_search_gives(
    stops: list[str], text: str, cuts: list[int], include_stop: bool
) -> None:
    shown, match = _run(stops, _chunks(text, cuts), include_stop=include_stop)
    expected = _search(stops, text)
    assert match == expected
    end = len(text) if expected is None else expected.end if include_stop else expected.start
    assert shown == text[:end]


@given(_STOPS, _TEXT)
def test_just_the_longest_suffix_that_begins_a_stop_string_is_held(stops: list[str], text: str) -> None:
    matcher = StopMatcher(stops)
    for end, char in enumerate(text, 1):
        matcher.feed(char)
        if matcher.match is not None:
            return
        suffixes = [text[start:end] for start in range(end + 1)]
        assert matcher.held == next(
            s for s in suffixes if any(stop.startswith(s) and stop != s for stop in [*stops, "x"])
        )


def test_a_stop_string_cut_by_tokens_never_reaches_the_client() -> None:
    matcher = StopMatcher(["DEFGHIJ"])
    assert [matcher.feed(piece) for piece in ["ABC", "DEF", "G", "HI", "J", "KLM"]] == ["ABC", "", "", "", "", ""]
    assert matcher.match == StopMatch("DEFGHIJ", 3, 10)


def test_the_held_tail_comes_out_when_the_answer_ends_otherwise() -> None:
    matcher = StopMatcher(["</think>"])
    assert matcher.feed("so </thi") == "so "
    assert matcher.flush() == "</thi"
    assert matcher.match is None


def test_a_tag_that_shares_a_beginning_with_a_stop_string_arrives_whole() -> None:
    matcher = StopMatcher(["</stop>"])
    assert matcher.feed("a</") + matcher.feed("think>b") + matcher.flush() == "a</think>b"


def test_without_stop_strings_text_passes_at_once() -> None:
    assert StopMatcher([]).feed("anything") == "anything"


def test_an_empty_stop_string_is_an_error() -> None:
    with pytest.raises(InvalidRequest, match="a stop string is empty"):
        StopMatcher(["a", ""])
