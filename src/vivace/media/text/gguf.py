"""Tokenizers built from the metadata of a GGUF file; ids equal llama.cpp's.

Kinds: `gpt2` (byte-level BPE with a pre-tokenizer kind), `llama` (SentencePiece BPE with scores and byte fallback) and
`bert` (WordPiece). One difference to llama.cpp is wanted: a control token never comes out of plain text here.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers

from vivace.errors import ModelError, UnsupportedModel, nearest
from vivace.media.text.byte_level import bytes_of_piece
from vivace.media.text.literals import LiteralMatcher
from vivace.media.text.pretokenizers import PRE_TOKENIZERS, UNSUPPORTED, PreTokenizer
from vivace.media.text.sentencepiece import SPACE_MARK, SentencePieceBPE
from vivace.media.text.tokenizer import RunStart, SpecialToken, Tokenizer, Vocabulary
from vivace.media.text.wordpiece import WordPiece

_PREFIX = "tokenizer.ggml."

# Names of tokens that end a turn or an answer. Files often state one of them only, so all that exist count.
_END_NAMES = frozenset(
    {
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "</s>",
        "<|eom_id|>",
        "<EOT>",
        "[EOT]",
        "[EOS]",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<eos>",
        "<｜end▁of▁sentence｜>",
    }
)


class _TokenType(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class _Tokens:
    """The token lists of a file, checked: equally long, of the right types."""

    texts: Sequence[str]
    types: Sequence[int]
    scores: Sequence[float]

    def of_type(self, *types: int) -> list[int]:
        return [token_id for token_id, kind in enumerate(self.types) if kind in types]


class GGUFTokenizer(Tokenizer):
    """The part that all kinds share: user-defined tokens are cut out of plain text first, then `_encode_words` runs."""

    def __init__(self, vocabulary: Vocabulary, tokens: _Tokens) -> None:
        super().__init__(vocabulary)
        self._tokens = tokens
        self._user_defined = {tokens.texts[i]: i for i in tokens.of_type(_TokenType.USER_DEFINED)}
        self._user_matcher = LiteralMatcher(self._user_defined)
        self._literal_ids = frozenset(tokens.of_type(_TokenType.CONTROL, _TokenType.UNKNOWN, _TokenType.USER_DEFINED))

    def token_text(self, token_id: int) -> str:
        self.check_id(token_id)
        return self._tokens.texts[token_id]

    def token_bytes(self, token_id: int) -> bytes:
        text = self.token_text(token_id)
        return text.encode("utf-8") if token_id in self._literal_ids else self._piece_bytes(token_id, text)

    def _encode_run(self, text: str, start: RunStart) -> list[int]:
        ids: list[int] = []
        for piece, is_user_defined in self._user_matcher.split(text):
            if is_user_defined:
                ids.append(self._user_defined[piece])
                start = RunStart.SPECIAL
            else:
                ids.extend(self._encode_words(piece, start))
                start = RunStart.MIDDLE
        return ids

    @abstractmethod
    def _encode_words(self, text: str, start: RunStart) -> list[int]:
        """Return the ids of text that holds no user-defined token."""

    @abstractmethod
    def _piece_bytes(self, token_id: int, text: str) -> bytes:
        """Return the bytes of an ordinary piece, which the vocabulary spells `text`."""


class ByteLevelBPE(GGUFTokenizer):
    """`gpt2`: byte-level BPE in the `tokenizers` library, with the words cut as the pre-tokenizer kind says."""

    def __init__(self, vocabulary: Vocabulary, tokens: _Tokens, merges: Sequence[str], kind: PreTokenizer) -> None:
        super().__init__(vocabulary, tokens)
        plain = {text: i for i, text in enumerate(tokens.texts) if i not in vocabulary.special_ids}
        pairs = [(a, b) for a, b in map(_split_merge, merges) if a in plain and b in plain and a + b in plain]
        model = models.BPE(vocab=plain, merges=pairs, ignore_merges=kind.ignore_merges)
        self._backend = tokenizers.Tokenizer(model)
        cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in kind.patterns]
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self._backend.pre_tokenizer = pre_tokenizers.Sequence([*cuts, to_bytes])
        self._backend.decoder = decoders.ByteLevel()

    def _encode_words(self, text: str, start: RunStart) -> list[int]:
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def _piece_bytes(self, token_id: int, text: str) -> bytes:
        return bytes_of_piece(text)


class SentencePiece(GGUFTokenizer):
    """`llama`: SentencePiece BPE. `add_space_prefix` puts a space before a text and after each special token."""

    def __init__(self, vocabulary: Vocabulary, tokens: _Tokens, *, add_space_prefix: bool) -> None:
        super().__init__(vocabulary, tokens)
        self._add_space_prefix = add_space_prefix
        self._byte_ids = {text: i for i, text in enumerate(tokens.texts) if tokens.types[i] == _TokenType.BYTE}
        self._bytes = {token_id: bytes([int(text[3:5], 16)]) for text, token_id in self._byte_ids.items()}
        hidden = frozenset(tokens.of_type(_TokenType.CONTROL, _TokenType.UNKNOWN, _TokenType.BYTE))
        pieces = {t: (i, tokens.scores[i]) for i, t in enumerate(tokens.texts) if i not in hidden}
        self._model = SentencePieceBPE(pieces, self._fallback)

    def _encode_words(self, text: str, start: RunStart) -> list[int]:
        prefix = " " if self._add_space_prefix and start is not RunStart.MIDDLE else ""
        return self._model.encode((prefix + text).replace(" ", SPACE_MARK))

    def _fallback(self, char: str) -> list[int]:
        found = [self._byte_ids.get(f"<0x{byte:02X}>") for byte in char.encode("utf-8")]
        unknown = self.vocabulary.unk_id
        if None in found:
            return [] if unknown is None else [unknown]
        return [token_id for token_id in found if token_id is not None]

    def _piece_bytes(self, token_id: int, text: str) -> bytes:
        return self._bytes.get(token_id) or text.replace(SPACE_MARK, " ").encode("utf-8")


class BertWordPiece(GGUFTokenizer):
    """`bert`: WordPiece, with [CLS] and [SEP] around an encoder's text."""

    def __init__(self, vocabulary: Vocabulary, tokens: _Tokens, model: WordPiece, template: tuple[int, int]) -> None:
        super().__init__(vocabulary, tokens)
        self._model = model
        self._template = template

    def encode_with_template(
        self, text: str, max_length: int | None = None, *, parse_special: bool = False
    ) -> list[int]:
        """Return [CLS] text [SEP]; a text over `max_length` ids (those two included) loses its end."""
        ids = self.encode(text, parse_special=parse_special)
        if max_length is not None:
            ids = ids[: max(0, max_length - 2)]
        return [self._template[0], *ids, self._template[1]]

    def _encode_words(self, text: str, start: RunStart) -> list[int]:
        return self._model.encode(text)

    def _piece_bytes(self, token_id: int, text: str) -> bytes:
        return text.replace(SPACE_MARK, " ").encode("utf-8")


def load_gguf_tokenizer(metadata: Mapping[str, Any]) -> GGUFTokenizer:
    """Build the tokenizer that a GGUF file's metadata describes.

    `metadata` maps keys such as "tokenizer.ggml.tokens" to values. Raises ModelError for missing or damaged lists and
    UnsupportedModel for other kinds; warns once for an unknown pre-tokenizer kind, which gets the default rules.
    """
    tokens = _read_tokens(metadata)
    kind = metadata.get(_PREFIX + "model")
    if kind == "gpt2":
        rules = _pre_tokenizer(str(metadata.get(_PREFIX + "pre", "default")))
        merges = metadata.get(_PREFIX + "merges")
        if merges is None:
            raise ModelError("the file has no tokenizer.ggml.merges", hint="convert the model again")
        return ByteLevelBPE(_vocabulary(metadata, tokens, add_bos=rules.adds_bos), tokens, merges, rules)
    if kind == "llama":
        prefix = bool(metadata.get(_PREFIX + "add_space_prefix", True))
        vocabulary = _vocabulary(metadata, tokens, add_bos=True, bos=1, eos=2, unk=0, strips=prefix)
        return SentencePiece(vocabulary, tokens, add_space_prefix=prefix)
    if kind == "bert":
        return _make_bert(metadata, tokens)
    raise UnsupportedModel(f"tokenizer kind '{kind}' of the file is not known", hint="known: gpt2, llama, bert")


def _make_bert(metadata: Mapping[str, Any], tokens: _Tokens) -> BertWordPiece:
    vocabulary = _vocabulary(metadata, tokens, add_bos=True, bos=101, unk=100, strips=True)
    unk_id, cls_id = vocabulary.unk_id, vocabulary.bos_id
    sep_id = _named_id(metadata, tokens, "seperator_token_id", 102)  # the key is spelt so in the format
    if unk_id is None or cls_id is None or sep_id is None:
        raise ModelError("a BERT vocabulary lacks its unknown, [CLS] or [SEP] token", hint="convert the model again")
    lowercase = bool(metadata.get(_PREFIX + "normalizer.lowercase", True))
    strip_accents = bool(metadata.get(_PREFIX + "normalizer.strip_accents", lowercase))
    hidden = vocabulary.special_ids | {unk_id}
    pieces = {text: i for i, text in enumerate(tokens.texts) if i not in hidden}
    model = WordPiece(pieces, unk_id, lowercase=lowercase, strip_accents=strip_accents)
    return BertWordPiece(vocabulary, tokens, model, (cls_id, sep_id))


def _read_tokens(metadata: Mapping[str, Any]) -> _Tokens:
    texts = metadata.get(_PREFIX + "tokens")
    if not isinstance(texts, Sequence) or isinstance(texts, str) or not texts:
        raise ModelError("the file has no tokenizer.ggml.tokens", hint="use a GGUF file that holds its tokenizer")
    types = metadata.get(_PREFIX + "token_type")
    scores = metadata.get(_PREFIX + "scores")
    for name, values in (("token_type", types), ("scores", scores)):
        if values is not None and len(values) < len(texts):
            raise ModelError(
                f"tokenizer.ggml.{name} has {len(values)} entries for {len(texts)} tokens", hint="convert it again"
            )
    types = [_TokenType.NORMAL] * len(texts) if types is None else [int(kind) for kind in types[: len(texts)]]
    for token_id, text in enumerate(texts):
        if text in _END_NAMES:
            types[token_id] = _TokenType.CONTROL  # converters often mark these as normal or user-defined
    scores = [0.0] * len(texts) if scores is None else [float(score) for score in scores[: len(texts)]]
    named = [text or f"[EMPTY_{token_id}]" for token_id, text in enumerate(texts)]
    return _Tokens(named, types, scores)


def _vocabulary(
    metadata: Mapping[str, Any],
    tokens: _Tokens,
    *,
    add_bos: bool = False,
    bos: int | None = None,
    eos: int | None = None,
    unk: int | None = None,
    strips: bool = False,
) -> Vocabulary:
    """Return the vocabulary's facts; `bos`, `eos` and `unk` are what the kind means when the file is silent."""
    control = tokens.of_type(_TokenType.CONTROL, _TokenType.UNKNOWN)
    eos_id = _named_id(metadata, tokens, "eos_token_id", eos)
    ends = {eos_id, *(_named_id(metadata, tokens, f"{name}_token_id", None) for name in ("eot", "eom"))}
    ends |= {token_id for token_id in control if tokens.texts[token_id] in _END_NAMES}
    bos_id = _named_id(metadata, tokens, "bos_token_id", bos)
    return Vocabulary(
        size=len(tokens.texts),
        special=tuple(SpecialToken(token_id, tokens.texts[token_id]) for token_id in control),
        bos_id=bos_id,
        eos_id=eos_id,
        eos_ids=frozenset(token_id for token_id in ends if token_id is not None),
        unk_id=_named_id(metadata, tokens, "unknown_token_id", unk),
        add_bos=bool(metadata.get(_PREFIX + "add_bos_token", add_bos)) and bos_id is not None,
        add_eos=bool(metadata.get(_PREFIX + "add_eos_token", False)) and eos_id is not None,
        strips_leading_space=strips,
    )


def _named_id(metadata: Mapping[str, Any], tokens: _Tokens, name: str, default: int | None) -> int | None:
    """Return the id under a key, or the default; ids outside the vocabulary count as missing."""
    value = metadata.get(_PREFIX + name, default)
    return int(value) if value is not None and 0 <= int(value) < len(tokens.texts) else None


def _pre_tokenizer(name: str) -> PreTokenizer:
    if name in UNSUPPORTED:
        raise UnsupportedModel(
            f"the pre-tokenizer kind '{name}' is not supported", hint="use the model's folder instead"
        )
    if name not in PRE_TOKENIZERS:
        warnings.warn(
            f"unknown pre-tokenizer kind '{name}' in the GGUF file: cutting words by the default rules, so token ids "
            f"may differ from the model's own ({nearest(name, PRE_TOKENIZERS)})",
            stacklevel=3,
        )
        return PRE_TOKENIZERS["default"]
    return PRE_TOKENIZERS[name]


def _split_merge(merge: str) -> tuple[str, str]:
    """Return the two sides; the first may itself begin with a space."""
    cut = merge.find(" ", 1)
    return (merge[:cut], merge[cut + 1 :]) if cut > 0 else (merge, "")
