"""Small tokenizer folders of each kind, trained on the corpus while the tests run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from tests.media.text.corpus import TEXTS

CONTROL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
# Learning from texts that name control tokens would make pieces of those names.
_TRAINING = [text for text in TEXTS if "im_end" not in text and "<s>" not in text and "[CLS]" not in text]
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def save_folder(folder: Path, kind: str, **config: Any) -> Path:
    """Write tokenizer.json and its companions of `kind` (a key of MAKERS) to `folder` and return it."""
    tokenizer = MAKERS[kind]()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    if kind == "wordpiece":
        names = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    whole = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **names, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(whole), "utf-8")
    return folder


def _byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1500, initial_alphabet=alphabet, special_tokens=CONTROL, show_progress=False
    )
    tokenizer.train_from_iterator(_TRAINING, trainer)
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True, rstrip=True)])
    tokenizer.add_special_tokens([AddedToken("<mask>", special=True, lstrip=True)])
    return tokenizer


def _fallback_bpe() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    trainer = trainers.BpeTrainer(
        vocab_size=1500, special_tokens=CONTROL + _BYTES, show_progress=False, limit_alphabet=300
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.train_from_iterator(_TRAINING, trainer)
    for token in _BYTES:  # the trainer made them special, which they are in no model
        assert tokenizer.token_to_id(token) is not None
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] in CONTROL]
    return Tokenizer.from_str(json.dumps(state))


def _metaspace() -> Tokenizer:
    tokenizer = _fallback_bpe()
    tokenizer.normalizer = None  # type: ignore[assignment]
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def _prepend() -> Tokenizer:
    tokenizer = _fallback_bpe()
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _gemma_like() -> Tokenizer:
    tokenizer = _fallback_bpe()
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_tokens([AddedToken("▁▁▁", normalized=False), AddedToken("\n\n\n\n", normalized=False)])
    return tokenizer


def _wordpiece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=900, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(_TRAINING, trainer)
    around = [("[CLS]", 2), ("[SEP]", 3)]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=around)
    tokenizer.enable_truncation(16)
    tokenizer.enable_padding(length=20)
    return tokenizer


MAKERS = {
    "byte_level": _byte_level,
    "metaspace": _metaspace,
    "prepend": _prepend,
    "gemma_like": _gemma_like,
    "wordpiece": _wordpiece,
}
