"""WordPiece as llama.cpp applies it to BERT vocabularies in GGUF files: longest piece first (Devlin et al., 2018).

Pieces that begin a word carry a U+2581 in front; those that go on with one have no mark.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping

from vivace.media.text.sentencepiece import SPACE_MARK

# Blocks of Chinese characters, each of which is a word. The sixth begins at U+2B920 as in BERT's published tokenizers.
_CHINESE = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


class WordPiece:
    """Cuts text into the pieces of a vocabulary; a word that does not split into pieces becomes `unk_id`."""

    def __init__(self, pieces: Mapping[str, int], unk_id: int, *, lowercase: bool, strip_accents: bool) -> None:
        self._pieces = pieces
        self._unk_id = unk_id
        self._lowercase = lowercase
        self._strip_accents = strip_accents
        self._longest = max(map(len, pieces), default=1)

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`."""
        ids: list[int] = []
        for word in self._words(text):
            ids.extend(self._encode_word(SPACE_MARK + word))
        return ids

    def _encode_word(self, word: str) -> list[int]:
        ids: list[int] = []
        start = 0
        while start < len(word):
            for end in range(min(len(word), start + self._longest), start, -1):
                token_id = self._pieces.get(word[start:end])
                if token_id is not None:
                    ids.append(token_id)
                    start = end
                    break
            else:
                return [self._unk_id]
        return ids

    def _words(self, text: str) -> Iterator[str]:
        """Yield the normalised words: whitespace separates, punctuation and Chinese characters stand alone."""
        word: list[str] = []
        for char in unicodedata.normalize("NFD", text) if self._strip_accents else text:
            category = unicodedata.category(char)
            if char.isspace():
                if word:
                    yield "".join(word)
                word = []
            elif not self._is_dropped(char, category):
                shown = char.lower() if self._lowercase and len(char.lower()) == 1 else char
                if _stands_alone(char, category):
                    if word:
                        yield "".join(word)
                    word = []
                    yield shown
                else:
                    word.append(shown)
        if word:
            yield "".join(word)

    def _is_dropped(self, char: str, category: str) -> bool:
        is_control = category[0] == "C" and category != "Cn"
        is_accent = category[0] == "M" and self._strip_accents
        return char in "\0\ufffd" or is_control or is_accent


def _stands_alone(char: str, category: str) -> bool:
    code = ord(char)
    is_symbol = category[0] == "S" and code < 0x7F
    return category[0] == "P" or is_symbol or any(first <= code <= last for first, last in _CHINESE)
