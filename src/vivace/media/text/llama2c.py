"""The tokenizer file of llama2.c (such as tok512.bin): scored pieces, byte fallback, a space before each text.

Layout, little-endian: int32 longest piece, then for each id float32 score, int32 number of bytes, the bytes (UTF-8).
Ids 0, 1, 2 are unknown, BOS and EOS; ids 3 to 258 are the 256 bytes. Encoding follows run.c of llama2.c.
"""

from __future__ import annotations

import re
import struct
from itertools import groupby
from pathlib import Path

from vivace.errors import ModelError
from vivace.media.text.sentencepiece import merge_by_score
from vivace.media.text.tokenizer import RunStart, SpecialToken, Tokenizer, Vocabulary

_UNK, _BOS, _EOS, _FIRST_BYTE = 0, 1, 2, 3
_NUM_RESERVED = _FIRST_BYTE + 256
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_ENTRY = struct.Struct("<fi")


class Llama2cTokenizer(Tokenizer):
    """`pieces` holds (text, score) by id."""

    def __init__(self, pieces: list[tuple[str, float]]) -> None:
        # llama2.c ends an answer at BOS, which stands between the stories that its models were trained on.
        super().__init__(
            Vocabulary(
                size=len(pieces),
                special=(SpecialToken(_UNK, "<unk>"), SpecialToken(_BOS, "<s>"), SpecialToken(_EOS, "</s>")),
                bos_id=_BOS,
                eos_id=_EOS,
                eos_ids=frozenset({_BOS, _EOS}),
                unk_id=_UNK,
                add_bos=True,
                strips_leading_space=True,
            )
        )
        self._pieces = pieces
        self._ids = {text: i for i, (text, _) in enumerate(pieces) if i >= _NUM_RESERVED}

    def token_text(self, token_id: int) -> str:
        self.check_id(token_id)
        return self._pieces[token_id][0]

    def token_bytes(self, token_id: int) -> bytes:
        text = self.token_text(token_id)
        match = _BYTE_PIECE.fullmatch(text)
        return bytes([int(match[1], 16)]) if match else text.encode("utf-8")

    def _encode_run(self, text: str, start: RunStart) -> list[int]:
        ids: list[int] = []
        text = text if start is RunStart.MIDDLE else " " + text
        for is_known, run in groupby(text, key=self._ids.__contains__):
            if is_known:
                ids.extend(self._ids[part] for part in merge_by_score(list(run), self._score))
            else:
                ids.extend(byte + _FIRST_BYTE for byte in "".join(run).encode("utf-8"))
        return ids

    def _score(self, text: str) -> float | None:
        token_id = self._ids.get(text)
        return None if token_id is None else self._pieces[token_id][1]


def load_llama2c_tokenizer(path: Path) -> Llama2cTokenizer:
    """Read a tokenizer file. Raises ModelError with the place of the fault when it is damaged."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(
            f"cannot read {path}: {error.strerror}", hint="give the path of a llama2.c tokenizer"
        ) from error
    pieces: list[tuple[str, float]] = []
    position = 4
    while position < len(data):
        if position + _ENTRY.size > len(data):
            raise _damaged(path, position, "an entry is cut off")
        score, length = _ENTRY.unpack_from(data, position)
        position += _ENTRY.size
        if not 0 <= length <= len(data) - position:
            raise _damaged(path, position, f"a piece of {length} bytes, with {len(data) - position} left")
        pieces.append((data[position : position + length].decode("utf-8", "replace"), score))
        position += length
    if len(pieces) < _NUM_RESERVED:
        raise _damaged(path, position, f"{len(pieces)} pieces, expected at least {_NUM_RESERVED}")
    return Llama2cTokenizer(pieces)


def _damaged(path: Path, position: int, problem: str) -> ModelError:
    return ModelError(f"{path} at byte {position}: {problem}", hint="this is no llama2.c tokenizer, or it is damaged")
