"""Tokenizers from a Hugging Face folder: tokenizer.json through the `tokenizers` library, and the files beside it.

Ids equal those of transformers with `split_special_tokens=True`; with `parse_special=True` those of its default.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from vivace.errors import ModelError
from vivace.media.text.byte_level import bytes_of_piece
from vivace.media.text.tokenizer import RunStart, SpecialToken, Tokenizer, Vocabulary

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE_MARK = "▁"

LONG_TEXT = 1 << 14  # characters: beyond it the library's batch call is taken, which lets other threads run meanwhile


@dataclass(frozen=True)
class HubFiles:
    """What the files beside tokenizer.json say; each may be missing."""

    tokenizer_config: Mapping[str, Any]
    special_tokens_map: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    model_config: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> HubFiles:
        names = ("tokenizer_config", "special_tokens_map", "generation_config", "config")
        return cls(*(_read_json(folder / f"{name}.json") for name in names))

    def named_token(self, name: str) -> str | None:
        """Return the text of a named token such as "eos_token", or None."""
        value = self.tokenizer_config.get(name, self.special_tokens_map.get(name))
        if isinstance(value, Mapping):
            value = value.get("content")
        return value if isinstance(value, str) else None

    def extra_special_tokens(self) -> list[str]:
        """Return the special tokens that have no name of their own."""
        found: list[str] = []
        for key in ("additional_special_tokens", "extra_special_tokens"):
            value = self.tokenizer_config.get(key, self.special_tokens_map.get(key)) or ()
            entries = value.values() if isinstance(value, Mapping) else value
            found += [entry["content"] if isinstance(entry, Mapping) else str(entry) for entry in entries]
        return found

    def eos_ids(self) -> set[int]:
        """Return the ids that end an answer as the model's own files list them (one number or a list)."""
        value = self.generation_config.get("eos_token_id", self.model_config.get("eos_token_id"))
        values = value if isinstance(value, list) else [value]
        return {entry for entry in values if isinstance(entry, int)}


class HFTokenizer(Tokenizer):
    """A tokenizer.json. Special tokens are cut out by the base class, so the library sees plain text only."""

    def __init__(self, backend: tokenizers.Tokenizer, vocabulary: Vocabulary, template: tuple[list[int], list[int]]):
        """`backend` must have `encode_special_tokens` set; `template` is what its post-processor puts around a text."""
        super().__init__(vocabulary)
        self._backend = backend
        self._continuing = _without_first_prefix(backend)
        self._template = template
        self._piece_bytes = _piece_decoder(_state(backend.decoder))

    def encode_with_template(
        self, text: str, max_length: int | None = None, *, parse_special: bool = False
    ) -> list[int]:
        """Return the ids that an encoder takes, such as [CLS] text [SEP].

        A text over `max_length` ids (template included) loses its end, as sentence-transformers truncates.
        """
        before, after = self._template
        ids = self.encode(text, parse_special=parse_special)
        if max_length is not None:
            ids = ids[: max(0, max_length - len(before) - len(after))]
        return [*before, *ids, *after]

    def token_text(self, token_id: int) -> str:
        self.check_id(token_id)
        return self._backend.id_to_token(token_id) or ""

    def token_bytes(self, token_id: int) -> bytes:
        return self._piece_bytes(self.token_text(token_id))

    def _encode_run(self, text: str, start: RunStart) -> list[int]:
        backend = self._backend if start is RunStart.TEXT else self._continuing
        if len(text) > LONG_TEXT:
            return list(backend.encode_batch_fast([text], add_special_tokens=False)[0].ids)
        return list(backend.encode(text, add_special_tokens=False).ids)


def load_hf_tokenizer(folder: Path) -> HFTokenizer:
    """Load the tokenizer of a Hugging Face folder. Raises ModelError when tokenizer.json is missing or damaged."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelError(f"no tokenizer.json in {folder}", hint="save it with transformers' tokenizer.save_pretrained")
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for every fault in the file
        raise ModelError(f"{path} is not a tokenizer: {error}", hint="download the file again") from error
    files = HubFiles.read(folder)
    backend.no_truncation()
    backend.no_padding()
    _mark_special(backend, files)
    before, after = _template_ids(backend)
    backend.encode_special_tokens = True
    return HFTokenizer(backend, _make_vocabulary(backend, files, before, after), (before, after))


def _make_vocabulary(backend: tokenizers.Tokenizer, files: HubFiles, before: list[int], after: list[int]) -> Vocabulary:
    def id_of(name: str) -> int | None:
        text = files.named_token(name)
        return None if text is None else backend.token_to_id(text)

    added = backend.get_added_tokens_decoder()
    special = [SpecialToken(i, t.content, t.lstrip, t.rstrip) for i, t in added.items() if t.special]
    bos_id, eos_id = id_of("bos_token"), id_of("eos_token")
    eos_ids = files.eos_ids() | ({eos_id} if eos_id is not None else set())
    return Vocabulary(
        size=max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1,
        special=tuple(special),
        bos_id=bos_id,
        eos_id=eos_id,
        eos_ids=frozenset(eos_ids),
        unk_id=id_of("unk_token"),
        # The post-processor decides; add_bos_token in the configuration is for slow tokenizers, as in transformers.
        add_bos=bos_id is not None and bos_id in before,
        add_eos=eos_id is not None and eos_id in after,
        strips_leading_space=_strips_leading_space(_state(backend.decoder)),
    )


def _read_json(path: Path) -> Mapping[str, Any]:
    """Return the object in a JSON file, or nothing when there is no such file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}", hint="download the file again") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds {type(value).__name__}, expected an object", hint="download the file again")
    return value


def _mark_special(backend: tokenizers.Tokenizer, files: HubFiles) -> None:
    """Make the tokens that the configuration names special, also where tokenizer.json does not say so."""
    decoder = files.tokenizer_config.get("added_tokens_decoder") or {}
    wanted = {entry["content"]: entry for entry in decoder.values() if entry.get("special")}
    named = [files.named_token(name) for name in _NAMED_TOKENS] + files.extra_special_tokens()
    known = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    missing = [text for text in dict.fromkeys([*wanted, *filter(None, named)]) if text not in known]
    flags = ("lstrip", "rstrip", "single_word", "normalized")
    tokens = []
    for text in missing:
        options = {flag: bool(wanted[text][flag]) for flag in flags if flag in wanted.get(text, {})}
        tokens.append(AddedToken(text, special=True, **options))
    backend.add_special_tokens(tokens)


def _template_ids(backend: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """Return what the post-processor puts before and after a text."""
    encoding = backend.encode("a", add_special_tokens=True)
    plain = [index for index, is_added in enumerate(encoding.special_tokens_mask) if not is_added]
    if not plain:
        return [], []
    ids = list(encoding.ids)
    return ids[: plain[0]], ids[plain[-1] + 1 :]


def _state(component: Any) -> dict[str, Any]:
    """Return a part of the tokenizer as the object that tokenizer.json holds for it."""
    state: dict[str, Any] = json.loads(component.__getstate__()) if component is not None else {}
    return state


def _parts(state: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """Return the steps of a sequence, or the one step that it is."""
    return list(state[key]) if state.get("type") == "Sequence" else [state]


def _without_first_prefix(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Return a tokenizer for runs that do not begin the text: Metaspace's "first" scheme adds no space there."""
    steps = _parts(_state(backend.pre_tokenizer), "pretokenizers")
    if not any(step.get("type") == "Metaspace" and step.get("prepend_scheme") == "first" for step in steps):
        return backend
    whole = json.loads(backend.to_str())
    for step in _parts(whole["pre_tokenizer"], "pretokenizers"):
        if step.get("type") == "Metaspace":
            assert isinstance(step, dict)
            step["prepend_scheme"] = "never"
    continuing = tokenizers.Tokenizer.from_str(json.dumps(whole))
    continuing.encode_special_tokens = True
    return continuing


def _strips_leading_space(decoder: Mapping[str, Any]) -> bool:
    """Return whether whole decoding drops one space at the beginning of the text."""
    for step in _parts(decoder, "decoders"):
        if step.get("type") == "WordPiece":
            return True
        if step.get("type") == "Strip" and step.get("content") == " " and step.get("start"):
            return True
        if step.get("type") == "Metaspace" and step.get("prepend_scheme", "always") != "never":
            return True
    return False


def _piece_decoder(decoder: Mapping[str, Any]) -> Callable[[str], bytes]:
    """Return the function that gives the bytes of one piece of the model's own vocabulary."""
    kinds = {step.get("type") for step in _parts(decoder, "decoders")}
    if "ByteLevel" in kinds:
        return bytes_of_piece
    if "WordPiece" in kinds:
        return _word_piece_bytes
    return _sentencepiece_bytes_with_fallback if "ByteFallback" in kinds else _sentencepiece_bytes


def _word_piece_bytes(piece: str) -> bytes:
    return (piece[2:] if piece.startswith("##") else " " + piece).encode("utf-8")


def _sentencepiece_bytes(piece: str) -> bytes:
    return piece.replace(_SPACE_MARK, " ").encode("utf-8")


def _sentencepiece_bytes_with_fallback(piece: str) -> bytes:
    match = _BYTE_PIECE.fullmatch(piece)
    return bytes([int(match[1], 16)]) if match else _sentencepiece_bytes(piece)
