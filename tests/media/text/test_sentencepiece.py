"""SentencePiece BPE: cutting words first changes nothing; fixed strings are found leftmost and longest."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vivace.media.text.literals import LiteralMatcher
from vivace.media.text.sentencepiece import SPACE_MARK, SentencePieceBPE, merge_by_score

_TEXT = st.text("ab>" + SPACE_MARK, max_size=30)
# Few scores, so that ties are common; some pieces reach across a space mark.
_PIECES = st.dictionaries(st.text("ab>" + SPACE_MARK, min_size=2, max_size=5), st.integers(-4, 0), max_size=25)


@given(_PIECES, _TEXT)
def test_words_give_what_the_whole_text_gives(scores: dict[str, int], text: str) -> None:
    letters = {char: (index, -99.0) for index, char in enumerate("ab>" + SPACE_MARK)}
    pieces = letters | {piece: (index + 4, float(score)) for index, (piece, score) in enumerate(scores.items())}
    whole = merge_by_score(list(text), lambda union: pieces[union][1] if union in pieces else None)
    assert SentencePieceBPE(pieces, lambda char: [-1]).encode(text) == [pieces[part][0] for part in whole]


@given(st.lists(st.text("ab", max_size=4), max_size=6), st.text("abc", max_size=20))
def test_literals_are_found_leftmost_and_longest(literals: list[str], text: str) -> None:
    expected = []
    position = 0
    while position < len(text):
        found = max((one for one in literals if one and text.startswith(one, position)), key=len, default="")
        if found:
            expected.append((position, position + len(found)))
        position += len(found) or 1
    assert list(LiteralMatcher(literals).find(text)) == expected
    assert "".join(piece for piece, _ in LiteralMatcher(literals).split(text)) == text
