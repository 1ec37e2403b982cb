"""Makes golden.json.gz: the ids that llama.cpp gives for corpus.py. Run it again when the corpus or the kinds change.

    python -m tests.media.text.make_golden LLAMA_TOKENIZE name=FILE.gguf ...

LLAMA_TOKENIZE is the program of that name from a llama.cpp build; the named files are real models of the catalog. Three
small vocabularies are trained on the corpus and stored with the ids, so that the tests of all kinds need no download.
The byte-level one is trained without cutting words: its pieces reach across the borders that pre-tokenizers draw, so
every wrong border changes ids.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import gguf
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers

from tests.media.text.corpus import TEXTS
from vivace.media.text.pretokenizers import PRE_TOKENIZERS

GOLDEN = Path(__file__).with_name("golden.json.gz")
# A piece that spells a control token would be one to llama.cpp; so nothing is learnt from texts that hold such names.
_TRAINING = [text for text in TEXTS if "im_end" not in text]
_CONTROL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]


def main(program: str, models_by_name: dict[str, str]) -> None:
    small = {"bpe": _train_bpe(), "sentencepiece": _train_sentencepiece(), "wordpiece": _train_wordpiece()}
    ids = {name: _tokenize_all(program, path) for name, path in models_by_name.items()}
    with tempfile.TemporaryDirectory() as folder:
        for name, metadata in cases(small).items():
            path = Path(folder) / "small.gguf"
            _write_gguf(path, metadata)
            ids[name] = _tokenize_all(program, str(path))
    whole = {"small": small, "ids": ids}
    text = json.dumps(whole, ensure_ascii=False, separators=(",", ":"))
    GOLDEN.write_bytes(gzip.compress(text.encode("utf-8"), mtime=0))


def cases(small: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the metadata of each small case: one a pre-tokenizer rule, two SentencePiece, two WordPiece."""
    found: dict[str, dict[str, Any]] = {}
    rules = {}
    for name, rule in PRE_TOKENIZERS.items():
        rules.setdefault(rule, name)
    for name in rules.values():
        found[f"bpe/{name}"] = _metadata("gpt2", small["bpe"], pre=name)
    for prefix in (True, False):
        found[f"sentencepiece/prefix={prefix}"] = _metadata("llama", small["sentencepiece"], add_space_prefix=prefix)
    for lower in (True, False):
        extra = {"normalizer.lowercase": lower, "bos_token_id": 2, "seperator_token_id": 3, "unknown_token_id": 1}
        found[f"wordpiece/lowercase={lower}"] = _metadata("bert", small["wordpiece"], **extra)
    return found


def _metadata(model: str, lists: dict[str, Any], **extra: Any) -> dict[str, Any]:
    return {f"tokenizer.ggml.{key}": value for key, value in {"model": model, **lists, **extra}.items()}


def _train_bpe() -> dict[str, Any]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=2200, initial_alphabet=alphabet, special_tokens=_CONTROL, show_progress=False, max_token_length=12
    )
    tokenizer.train_from_iterator(_TRAINING, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    user_defined = ["<repo_name>", "\t\t", "你好"]
    types = [3] * len(_CONTROL) + [1] * (len(tokens) - len(_CONTROL)) + [4] * len(user_defined)
    merges = [" ".join(pair) for pair in model["merges"]]
    return {
        "tokens": tokens + user_defined,
        "token_type": types,
        "merges": merges,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _train_sentencepiece() -> dict[str, Any]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=1800, special_tokens=_CONTROL + bytes_, show_progress=False, max_token_length=10, limit_alphabet=400
    )
    tokenizer.train_from_iterator(_TRAINING, trainer)
    vocab = tokenizer.get_vocab()
    tokens = sorted(vocab, key=vocab.__getitem__)
    num_special = len(_CONTROL) + 256
    types = [2, 3, 3, 3, 3] + [6] * 256 + [1] * (len(tokens) - num_special)
    # Few score levels, so that ties are common and their order matters.
    scores = [0.0] * num_special + [-float(index // 3) for index in range(len(tokens) - num_special)]
    user_defined = [text for text in ("\n\n\n", "  ", "[MASK]") if text not in vocab]
    return {
        "tokens": tokens + user_defined,
        "token_type": types + [4] * len(user_defined),
        "scores": scores + [0.0] * len(user_defined),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }


def _train_wordpiece() -> dict[str, Any]:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    control = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    special = [AddedToken(text, special=True) for text in control]
    trainer = trainers.WordPieceTrainer(vocab_size=1200, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(_TRAINING, trainer)
    vocab = tokenizer.get_vocab()
    pieces = sorted(vocab, key=vocab.__getitem__)[len(control) :]
    # GGUF marks the beginnings of words where BERT marks the other pieces.
    marked = [piece[2:] if piece.startswith("##") else "▁" + piece for piece in pieces]
    tokens = list(dict.fromkeys(control + marked))
    types = [3, 2, 3, 3, 3] + [1] * (len(tokens) - len(control))
    return {"tokens": tokens, "token_type": types, "scores": [0.0] * len(tokens)}


def _write_gguf(path: Path, metadata: dict[str, Any]) -> None:
    """Write a file that holds a vocabulary and no weights."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(64)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(64)
    for key, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def _tokenize_all(program: str, model: str) -> list[list[int]]:
    return [_tokenize(program, model, text) for text in TEXTS]


def _tokenize(program: str, model: str, text: str) -> list[int]:
    """Return llama.cpp's ids, without BOS and with special tokens taken as text."""
    with tempfile.NamedTemporaryFile(suffix=".txt") as file:
        file.write(text.encode("utf-8"))
        file.flush()
        options = ["--ids", "--no-bos", "--no-escape", "--no-parse-special", "--log-disable"]
        done = subprocess.run([program, "-m", model, "-f", file.name, *options], capture_output=True, check=True)
    return list(json.loads(done.stdout))


if __name__ == "__main__":
    main(sys.argv[1], dict(argument.split("=", 1) for argument in sys.argv[2:]))
