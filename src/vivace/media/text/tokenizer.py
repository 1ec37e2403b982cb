"""What every tokenizer offers: text to ids and back, and the rule that a user's text is never control.

A *special* token is a control token such as <|im_end|>. Text becomes special ids in two cases only: it stands in a
segment that a chat template wrote, or the caller passes `parse_special=True`. Everything else is plain text, also when
it spells a special token. Adding BOS and EOS is the caller's step (`encode_prompt`), since a template may write them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from vivace.errors import InvalidRequest
from vivace.media.text.literals import LiteralMatcher


@dataclass(frozen=True)
class Segment:
    """A run of text with one origin. `is_template`: a chat template wrote it, so it may hold special tokens."""

    text: str
    is_template: bool


@dataclass(frozen=True)
class SpecialToken:
    """A control token. `strip_left` and `strip_right` swallow the whitespace beside it (lstrip, rstrip in files)."""

    id: int
    text: str
    strip_left: bool = False
    strip_right: bool = False


@dataclass(frozen=True)
class Vocabulary:
    """The facts about a vocabulary that do not depend on how text is cut.

    `size` counts ids, holes included. `add_bos` and `add_eos` say what a raw completion prompt gets around it.
    `hidden_ids` are left out of decoded text; `special_ids` are those that plain text never gives. The two differ by
    `unk_id`, which stands for an unknown character of ordinary text. `eos_id` is what
    `add_eos` appends, `eos_ids` holds every id that ends an answer. `strips_leading_space`: the first token's leading
    space is not part of the text (sentencepiece).
    """

    size: int
    special: tuple[SpecialToken, ...] = ()
    bos_id: int | None = None
    eos_id: int | None = None
    eos_ids: frozenset[int] = frozenset()
    unk_id: int | None = None
    add_bos: bool = False
    add_eos: bool = False
    strips_leading_space: bool = False
    hidden_ids: frozenset[int] = field(init=False)
    special_ids: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        ids = frozenset(token.id for token in self.special)
        object.__setattr__(self, "hidden_ids", ids)
        object.__setattr__(self, "special_ids", ids - {self.unk_id})


class RunStart(Enum):
    """Where a plain run begins, since some kinds put a space before certain runs."""

    TEXT = "at the start of the text"
    SPECIAL = "right after a special token"
    MIDDLE = "within a run that was cut in two"


class Tokenizer(ABC):
    """Text to ids and back. A kind implements `_encode_run`, `token_bytes` and `token_text`; the rules live here."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._special_by_text: Mapping[str, SpecialToken] = {t.text: t for t in vocabulary.special if t.text}
        self._special_matcher = LiteralMatcher(self._special_by_text)

    @property
    def vocab_size(self) -> int:
        return self.vocabulary.size

    @property
    def special_ids(self) -> frozenset[int]:
        return self.vocabulary.special_ids

    @property
    def bos_id(self) -> int | None:
        return self.vocabulary.bos_id

    @property
    def eos_ids(self) -> frozenset[int]:
        return self.vocabulary.eos_ids

    @property
    def add_bos(self) -> bool:
        return self.vocabulary.add_bos

    @property
    def add_eos(self) -> bool:
        return self.vocabulary.add_eos

    def encode(self, text: str, *, parse_special: bool = False) -> list[int]:
        """Return the ids of `text`, without BOS or EOS; special tokens are recognised only with `parse_special`."""
        return self.encode_segments([Segment(text, is_template=parse_special)])

    def encode_prompt(self, text: str, *, parse_special: bool = False) -> list[int]:
        """Return the ids of a raw completion prompt: BOS and EOS are added where the vocabulary asks, never twice."""
        ids = self.encode(text, parse_special=parse_special)
        if self.add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        eos_id = self.vocabulary.eos_id
        if self.add_eos and eos_id is not None and ids[-1:] != [eos_id]:
            ids.append(eos_id)
        return ids

    def encode_segments(self, segments: Iterable[Segment]) -> list[int]:
        """Return the ids of typed segments. Plain text across borders is one run; only special tokens cut it.

        Raises InvalidRequest for text that is no Unicode: a lone surrogate, as Python makes of bytes that are no UTF-8.
        """
        ids: list[int] = []
        pieces = self._split_special(segments)
        for index, piece in enumerate(pieces):
            if isinstance(piece, SpecialToken):
                ids.append(piece.id)
                continue
            text = piece
            before, after = pieces[index - 1] if index else None, pieces[index + 1] if index + 1 < len(pieces) else None
            if isinstance(before, SpecialToken) and before.strip_right:
                text = text.lstrip()
            if isinstance(after, SpecialToken) and after.strip_left:
                text = text.rstrip()
            if text:
                ids.extend(self._encode_plain(text, RunStart.SPECIAL if index else RunStart.TEXT))
        return ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Return the text of `ids`; bytes that are no UTF-8 become U+FFFD. Raises InvalidRequest for an unknown id."""
        data = bytearray()
        at_start = self.vocabulary.strips_leading_space
        for token_id in ids:
            self.check_id(token_id)
            if skip_special and token_id in self.vocabulary.hidden_ids:
                continue
            piece = self.token_bytes(token_id)
            data += piece.removeprefix(b" ") if at_start else piece
            at_start = False
        return data.decode("utf-8", "replace")

    def check_id(self, token_id: int) -> None:
        """Raise InvalidRequest unless `token_id` is in the vocabulary."""
        if not 0 <= token_id < self.vocab_size:
            raise InvalidRequest(
                f"token id {token_id} is outside the vocabulary of {self.vocab_size} tokens",
                hint=f"use ids from 0 to {self.vocab_size - 1}",
            )

    @abstractmethod
    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that this token adds to a text where it is shown."""

    @abstractmethod
    def token_text(self, token_id: int) -> str:
        """Return the token as the vocabulary spells it, such as "Ġthe", "▁the" or "<0x0A>"."""

    @abstractmethod
    def _encode_run(self, text: str, start: RunStart) -> list[int]:
        """Return the ids of plain text."""

    def _encode_plain(self, text: str, start: RunStart) -> list[int]:
        """Return `_encode_run`, taken apart where it gave a special id: some vocabularies hold them as pieces."""
        ids = self._encode_run(text, start)
        if self.special_ids.isdisjoint(ids):
            return ids
        if len(text) == 1:
            unknown = self.vocabulary.unk_id
            return [i for i in ids if i not in self.special_ids] or ([] if unknown is None else [unknown])
        middle = len(text) // 2
        return self._encode_plain(text[:middle], start) + self._encode_plain(text[middle:], RunStart.MIDDLE)

    def _split_special(self, segments: Iterable[Segment]) -> list[str | SpecialToken]:
        """Return plain runs and special tokens in order; neighbouring plain runs are joined."""
        pieces: list[str | SpecialToken] = []
        run: list[str] = []

        def close_run() -> None:
            if text := "".join(run):
                pieces.append(text)
            run.clear()

        for segment in segments:
            _check_text(segment.text)
            if not segment.is_template:
                run.append(segment.text)
                continue
            for piece, is_special in self._special_matcher.split(segment.text):
                if is_special:
                    close_run()
                    pieces.append(self._special_by_text[piece])
                else:
                    run.append(piece)
        close_run()
        return pieces


def _check_text(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"the text has a lone surrogate, U+{ord(text[error.start]):04X}, at character {error.start}",
            hint="give text as UTF-8; iconv converts other encodings",
        ) from None
