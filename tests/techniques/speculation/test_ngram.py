"""ngram: what it guesses, against a scan of the whole text, and what that costs."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from vivace.errors import InvalidRequest
from vivace.techniques.speculation.base import Drafter, DraftTree, Parts
from vivace.techniques.speculation.ngram import Config, make


def _drafter(**fields: int) -> Drafter:
    return make(Config(**fields), Parts(1000))


def _guess(text: Sequence[int], **fields: int) -> tuple[int, ...]:
    draft = _drafter(**fields).propose(np.array(text), 64)
    assert draft == DraftTree.chain(draft.ids)
    return draft.ids


def _scan(text: Sequence[int], k: int, min_n: int, max_n: int) -> tuple[int, ...]:
    """The definition: the longest end of the text that stands earlier in it, its last such place, and what follows."""
    for n in range(max_n, min_n - 1, -1):
        for start in range(len(text) - n - 1, -1, -1):
            if n <= len(text) and list(text[start : start + n]) == list(text[-n:]):
                longer = list(text)
                for place in range(start + n, start + n + k):
                    longer.append(longer[place])
                return tuple(longer[len(text) :])
    return ()


@pytest.mark.parametrize(("min_n", "max_n"), [(1, 1), (1, 3), (2, 4), (3, 3)])
def test_it_guesses_what_a_scan_of_the_whole_text_finds(min_n: int, max_n: int) -> None:
    rng = random.Random(10 * min_n + max_n)
    for _ in range(40):
        drafter, text = _drafter(k=5, min_n=min_n, max_n=max_n), []
        for _ in range(60):
            text.append(rng.randrange(3))
            assert drafter.propose(np.array(text), 64).ids == _scan(text, 5, min_n, max_n)


def test_the_longest_match_wins_and_of_equals_the_last() -> None:
    assert _guess([1, 2, 3, 9, 2, 3, 8, 1, 2, 3], k=1, min_n=1, max_n=3) == (9,)
    assert _guess([2, 3, 9, 2, 3, 8, 2, 3], k=1, min_n=1, max_n=2) == (8,)


def test_a_copy_goes_on_with_its_own_beginning() -> None:
    assert _guess([5, 5, 5], k=6, min_n=2, max_n=2) == (5,) * 6
    assert _guess([1, 2, 3, 1, 2], k=7, min_n=2, max_n=4) == (3, 1, 2, 3, 1, 2, 3)


def test_fewer_tokens_than_min_n_never_match() -> None:
    assert _guess([4, 1, 4], k=4, min_n=2, max_n=3) == ()
    assert _guess([4, 1, 4], k=4, min_n=1, max_n=3) == (1, 4, 1, 4)
    assert _guess([4], k=4, min_n=1, max_n=3) == ()


def test_another_text_than_before_is_read_anew() -> None:
    drafter = _drafter(k=2, min_n=1, max_n=2)
    assert drafter.propose(np.array([1, 2, 1]), 9).ids == (2, 1)
    assert drafter.propose(np.array([1, 3, 1]), 9).ids == (3, 1)
    assert drafter.propose(np.array([1]), 9).ids == ()


def test_each_token_is_indexed_once() -> None:
    drafter, text = _drafter(k=4, min_n=2, max_n=4), list(range(500))
    drafter.propose(np.array(text), 9)
    writes = _Writes(drafter._last)  # type: ignore[attr-defined]
    drafter._last = writes  # type: ignore[attr-defined]
    for token in range(20):
        drafter.propose(np.array([*text, *range(token + 1)]), 9)
    assert writes.count == 20 * 3


def test_min_n_above_max_n_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match=r"ngram\.min_n is 5, expected at most ngram\.max_n, 4"):
        Config(k=1, min_n=5)
    with pytest.raises(InvalidRequest, match=r"ngram\.max_n is 17, expected a whole number from 1 to 16"):
        Config(k=1, max_n=17)


class _Writes(dict):
    def __init__(self, values: dict) -> None:
        super().__init__(values)
        self.count = 0

    def __setitem__(self, key: bytes, value: int) -> None:
        self.count += 1
        super().__setitem__(key, value)
